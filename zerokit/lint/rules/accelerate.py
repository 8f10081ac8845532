"""What accelerate, and with it the Trainer, makes of a ds_config."""

from collections.abc import Iterator

from zerokit.config.base import AUTO, ZERO
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.resolving.filled_keys import SIZE_RULES

SWAP = (
    "with offload accelerate replaces the script's optimizer by Adam, and stops at Adagrad and at Lion of bitsandbytes"
)
"""The message for a script that zerokit does not know."""


@rule("accelerate-optimizer-swap")
def accelerate_optimizer_swap(subject: Subject) -> Iterator[Hit]:
    """Offload that turns the script's optimizer into Adam"""
    if subject.run.target not in ("accelerate", "trainer") or not subject.is_absent("optimizer"):
        return
    if not subject.offloads_optimizer or subject.value("zero_force_ds_cpu_optimizer") is not True:
        return
    place = subject.nearest_set(ZERO, "offload_optimizer")
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


@rule("no-hidden-size")
def no_hidden_size(subject: Subject) -> Iterator[Hit]:
    """ "auto" sizes for a model without a hidden size"""
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
