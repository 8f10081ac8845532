"""What accelerate, and with it the Trainer, makes of a ds_config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.findings import Remove
from zerokit.lint.examples import Facts, model_with_text_config, recipe
from zerokit.lint.optimizer_facts import default_clipping, optimizer_name
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.resolving.who_fills import SIZE_RULES

rule = Rules("accelerate")
_AUTO_BATCH = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
}
_OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto"}}
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
    "accelerate-without-zero",
    stops=True,
    bad=dict(_AUTO_BATCH),
    good=_zero(0),
    given={"target": "accelerate"},
)
def accelerate_without_zero(subject: Subject) -> Iterator[Hit]:
    """No section 'zero_optimization', which accelerate requires

    DeepSpeed takes a config without it for stage 0. accelerate raises "Please specify the ZeRO optimization
    config in the DeepSpeed config" before the script's first line is through, and the Trainer with it.

    For training without ZeRO write `"zero_optimization": {"stage": 0}`.

    Source: `DeepSpeedPlugin.__post_init__` in accelerate `utils/dataclasses.py` (1.15).
    """
    if _through_accelerate(subject) and subject.is_absent(ZERO):
        message = f"'{ZERO}' is absent, and accelerate refuses a config without it"
        yield Hit((), message, f'Add "{ZERO}": {{"stage": 0}}, or 2 to divide gradients and optimizer')


@rule(
    "null-section",
    stops=True,
    bad=_zero(2, offload_optimizer=None),
    good=_zero(2),
    given={"target": "accelerate"},
)
def null_section(subject: Subject) -> Iterator[Hit]:
    """A section that is null, which accelerate cannot handle

    DeepSpeed takes null for "absent". accelerate asks only whether the key is there, and then for what is
    inside: `offload_optimizer` null ends in "'NoneType' object has no attribute 'get'" once the model is
    loaded, unless the optimizer is in the file. With `bf16` null, bf16 asked for by the script or the Trainer
    is not filled in, so that training runs in fp32; fp16 ends in the same error.

    Source: `_prepare_deepspeed` in accelerate `accelerator.py`, `DeepSpeedPlugin.set_mixed_precision` in
    `utils/dataclasses.py` (1.15).
    """
    if not _through_accelerate(subject):
        return
    path: tuple[str, ...] = (ZERO, "offload_optimizer")
    if subject.is_set(*path) and subject.written_value(*path) is None and subject.is_absent("optimizer"):
        yield Hit(path, "accelerate fails on 'offload_optimizer' null", "Remove the key", (Remove(path),))
    path = ("bf16",)
    if subject.is_set(*path) and subject.written_value(*path) is None:
        message = "with 'bf16' null accelerate switches no precision on, whatever the script requests"
        yield Hit(path, message, "Remove the key", (Remove(path),), "warning")


@rule(
    "accelerate-lost-argument",
    severity="warning",
    bad={"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, ZERO: {"stage": 2}},
    good=_zero(2),
    given={"target": "accelerate"},
)
def accelerate_lost_argument(subject: Subject) -> Iterator[Hit]:
    """An absent key that overrides a setting of the script

    Without `gradient_accumulation_steps` in the file accelerate writes 1 into it, and then takes the file's
    value over that of `Accelerator(gradient_accumulation_steps=...)`, with a warning. Without
    `gradient_clipping` DeepSpeed clips at 1.0, and `accelerator.clip_grad_norm_` does not clip at all under
    DeepSpeed, whatever norm it is given.

    Source: `DeepSpeedPlugin.__post_init__` in accelerate `utils/dataclasses.py`, `_prepare_deepspeed` and
    `clip_grad_norm_` in `accelerator.py` (1.15).
    """
    if subject.run.target != "accelerate":
        return
    if subject.is_absent("gradient_accumulation_steps"):
        message = "'gradient_accumulation_steps' is absent, so accelerate uses 1 whatever the script says"
        yield Hit((), message, 'Add "gradient_accumulation_steps": "auto"')
    if subject.is_absent("gradient_clipping"):
        does = "clips at 1.0" if default_clipping(subject) else "does not clip"
        message = f"'gradient_clipping' is absent, so DeepSpeed {does} whatever clip_grad_norm_ is given"
        yield Hit((), message, 'Add "gradient_clipping" with the norm that is meant, or 0 for none')


@rule(
    "accelerate-auto-clipping",
    severity="info",
    bad={**_zero(2), "gradient_clipping": "auto"},
    good=_zero(2),
    given={"target": "accelerate"},
)
def accelerate_auto_clipping(subject: Subject) -> Iterator[Hit]:
    """'gradient_clipping' "auto", which is 1.0 with accelerate

    The Trainer fills in its `max_grad_norm`. accelerate knows no such argument: it takes
    `DeepSpeedPlugin(gradient_clipping=...)` or the variable ACCELERATE_GRADIENT_CLIPPING, else 1.0. What the
    script passes to `accelerator.clip_grad_norm_` has no effect.

    Source: `_prepare_deepspeed` in accelerate `accelerator.py` (1.15).
    """
    path = ("gradient_clipping",)
    if subject.run.target == "accelerate" and subject.is_set(*path, to=AUTO):
        message = '"auto" becomes 1.0, whatever the script\'s clip_grad_norm_ is given'
        yield Hit(path, message, "Write the norm that is meant, or 0 for none")


@rule(
    "accelerate-dummies",
    severity="info",
    bad={**_zero(2), "optimizer": _OPTIMIZER},
    good=_zero(2),
    given={"target": "accelerate"},
)
def accelerate_dummies(subject: Subject) -> Iterator[Hit]:
    """An optimizer in the file, which requires a DummyOptim in the script

    With `optimizer` in the file accelerate refuses a real optimizer from the script: it must pass an
    `accelerate.utils.DummyOptim`, and every schedule must be a `DummyScheduler`. That takes
    `lr_scheduler_callable` if the file has no `scheduler`. The other way round, a `DummyOptim` is refused if
    the file has no `optimizer`.

    Source: `_prepare_deepspeed` in accelerate `accelerator.py` (1.15).
    """
    if subject.run.target != "accelerate" or optimizer_name(subject) is None:
        return
    schedule = "a DummyScheduler"
    if subject.is_absent("scheduler"):
        schedule += " with lr_scheduler_callable, if any"
    message = f"with 'optimizer' in the file the script must pass a DummyOptim, and {schedule}"
    yield Hit(("optimizer",), message, "See that it does, or leave 'optimizer' to the script")


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
