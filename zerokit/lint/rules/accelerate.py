"""What accelerate, and with it the Trainer, makes of a ds_config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.lint.examples import Facts, model_with_text_config, recipe
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.resolving.who_fills import SIZE_RULES

rule = Rules("accelerate")
_AUTO_BATCH = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
}
SWAP = (
    "with offload accelerate replaces the script's optimizer by Adam, and stops at Adagrad and at Lion of "
    "bitsandbytes"
)
"""The message for a script that zerokit does not know."""


def _zero(stage: int, /, **keys: Any) -> dict[str, Any]:
    """A config for an example."""
    return {**_AUTO_BATCH, ZERO: {"stage": stage, **keys}}


def _through_accelerate(subject: Subject) -> bool:
    return subject.run.target in ("accelerate", "trainer")


@rule(
    "accelerate-optimizer-swap",
    severity="warning",
    bad=_zero(2, offload_optimizer={"device": "cpu"}),
    good=_zero(2),
    given=Facts(target="trainer", recipe=lambda: recipe(training={"optim": "adafactor"})),
)
def accelerate_optimizer_swap(subject: Subject) -> Iterator[Hit]:
    """Offload that turns the script's optimizer into Adam

    With `offload_optimizer`, and no optimizer in the file, accelerate puts a DeepSpeedCPUAdam in place of
    whatever the script or the Trainer's `optim` made. Only PyTorch's AdamW keeps its decoupled weight decay;
    the rest, SGD and Adafactor included, silently becomes Adam. Adagrad, and the 32-bit Lion of bitsandbytes,
    it means to keep, and stops with a TypeError: DeepSpeed's take no `adamw_mode`.

    `zero_force_ds_cpu_optimizer` false leaves the script's optimizer in place. It then runs on the host.

    Source: `map_pytorch_optim_to_deepspeed` in accelerate `utils/deepspeed.py`, `_prepare_deepspeed` in
    `accelerator.py` (1.15).
    """
    if not _through_accelerate(subject) or not subject.is_absent("optimizer"):
        return
    if not subject.offloads_optimizer or subject.value("zero_force_ds_cpu_optimizer") is not True:
        return
    place = (ZERO, "offload_optimizer") if subject.is_set(ZERO, "offload_optimizer") else (ZERO,)
    hint = "Use AdamW, or put the optimizer into the file"
    optim = subject.run.recipe.training.get("optim") if subject.run.recipe is not None else None
    if isinstance(optim, str):
        if optim == "adagrad":
            message = "with offload accelerate fails to make the optimizer 'adagrad' DeepSpeedCPUAdagrad"
            yield Hit(place, message, hint, severity="error")
        elif optim not in ("adamw_torch", "adamw_torch_fused"):
            message = f"with offload accelerate replaces the optimizer '{optim}' by DeepSpeedCPUAdam"
            yield Hit(place, message, hint)
    elif subject.run.target == "accelerate":
        yield Hit(place, SWAP, hint, severity="info")


@rule(
    "no-hidden-size",
    stops=True,
    bad=_zero(2, reduce_bucket_size="auto"),
    good=_zero(2, reduce_bucket_size=5e7),
    given=Facts(target="accelerate", model=model_with_text_config),
    needs=("model",),
)
def no_hidden_size(subject: Subject) -> Iterator[Hit]:
    """ "auto" sizes for a model without a hidden size

    Bucket sizes that are "auto" are computed from the model's `hidden_size`, or the largest of its
    `hidden_sizes`. The Trainer also looks into `text_config`, where models of text and images have it;
    accelerate does not. Where there is none, both stop with a ValueError once the model is loaded.

    Source: `_prepare_deepspeed` in accelerate `accelerator.py` (1.15); `trainer_config_finalize` in
    transformers `integrations/deepspeed.py` (5.23).
    """
    model, target = subject.run.model, subject.run.target
    if model is None or target not in ("accelerate", "trainer"):
        return
    by_trainer = target == "trainer"
    hidden = model.hidden_size_for_trainer if by_trainer else model.hidden_size_for_accelerate
    if hidden is not None:
        return
    for key in SIZE_RULES:
        if subject.is_set(ZERO, key, to=AUTO):
            who = "the Trainer" if by_trainer else "accelerate"
            message = f"{who} finds no hidden size in '{model.name}', from which it fills in '{key}'"
            yield Hit((ZERO, key), message, "Write a number, such as 5e7")
