"""The number formats that a config trains in, as far as they are known."""

from typing import Literal

from zerokit.choices import Precision
from zerokit.config.base import AUTO
from zerokit.config.dtypes import DTYPES
from zerokit.lint.subject import Subject


def switch(subject: Subject, section: Literal["bf16", "fp16"]) -> bool | None:
    """Whether the section is on; None where that is open.

    It is open where it is "auto" (unless the recipe fills it), where it may be in a key that was not
    understood, and where the section is absent although the Trainer or accelerate may add it
    (`set_mixed_precision` in accelerate `utils/dataclasses.py`). A section without `enabled` is off.
    """
    if subject.is_uncertain(section, "enabled"):
        return None
    if not subject.is_set(section):
        return False if subject.run.target == "deepspeed" else None
    model = getattr(subject.config, section)
    value = False if model is None else model.enabled
    if value != AUTO:
        return bool(value)
    filled = subject.run.recipe.training.get(section) if subject.run.recipe is not None else None
    return filled if isinstance(filled, bool) else None


def fp16_may_be_on(subject: Subject) -> bool:
    """Whether fp16 is on, or "auto" in a config that is made for it."""
    is_on = switch(subject, "fp16")
    return subject.is_set("fp16", "enabled") if is_on is None else is_on


def precision(subject: Subject) -> Precision | None:
    """What the model trains in, or None where that is open or contradictory.

    Source: `get_data_types` in `deepspeed/runtime/engine.py`.
    """
    bf16, fp16 = switch(subject, "bf16"), switch(subject, "fp16")
    if bf16 and fp16:
        return None
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    return "fp32" if bf16 is False and fp16 is False else None


def format_at(subject: Subject, *path: str) -> str | None:
    """The number format named at `path`, such as ``bf16`` for "torch.bfloat16"; None if none is named."""
    name = subject.value(*path)
    return DTYPES.get(name) if isinstance(name, str) else None
