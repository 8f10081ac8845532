"""ZenFlow: important gradients at once, the rest later on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import AUTO, ZERO
from zerokit.config.sections import ZenFlow
from zerokit.findings import Severity
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_ZENFLOW = (ZERO, "zenflow")


def _section(subject: Subject) -> ZenFlow | None:
    return subject.zero.zenflow


@rule("zenflow-interval")
def zenflow_interval(subject: Subject) -> Iterator[Hit]:
    """ZenFlow intervals that contradict each other"""
    section = _section(subject)
    if section is None or subject.stage == 0 or (*_ZENFLOW,) in subject.doubtful:
        return
    strategy, select, update = section.select_strategy, section.select_interval, section.update_interval
    path = (*_ZENFLOW, "select_interval")
    if strategy == AUTO and select != AUTO:
        hint = 'Set "select_strategy" to "step" or "epoch", or remove the key'
        yield Hit(path, f"'select_interval' {select} needs a 'select_strategy' other than \"auto\"", hint)
    elif strategy != AUTO and select == AUTO:
        message = f"'select_strategy' \"{strategy}\" needs a 'select_interval' in numbers"
        yield Hit((*_ZENFLOW, "select_strategy"), message, 'Add "select_interval"')
    elif strategy == "step" and isinstance(select, int) and isinstance(update, int) and select < update:
        message = f"'select_interval' {select} is shorter than 'update_interval' {update}"
        yield Hit(path, message, f"Make it at least {update}")


@rule("zenflow-auto-update")
def zenflow_auto_update(subject: Subject) -> Iterator[Hit]:
    """ZenFlow with its default 'update_interval' divides the loss by zero"""
    section = _section(subject)
    path = (*_ZENFLOW, "update_interval")
    if (
        section is None
        or subject.stage == 0
        or subject.run.target == "trainer"
        or subject.is_uncertain(*path)
    ):
        return
    if section.update_interval == AUTO:
        message = "without a number for 'update_interval', DeepSpeed divides the loss by 0 accumulation steps"
        severity: Severity = "warning" if subject.run.target is None else "error"
        yield Hit(
            path if subject.is_set(*path) else _ZENFLOW, message, 'Set "update_interval" to 4', (), severity
        )


@rule("zenflow-optimizer")
def zenflow_optimizer(subject: Subject) -> Iterator[Hit]:
    """ZenFlow without Adam in the section 'optimizer'"""
    optimizer = subject.config.optimizer
    if _section(subject) is None or subject.stage not in (1, 2, 3) or subject.is_uncertain("optimizer"):
        return
    may_be_given = optimizer is None and subject.stage == 3  # by a script, which is not known to do so
    if may_be_given and subject.run.target != "trainer":
        return
    if optimizer is None or optimizer.type.lower() not in ("adam", "adamw"):
        message = "ZenFlow works with Adam and AdamW of the section 'optimizer' only"
        hint = "Give it \"AdamW\" (a recipe: optim deepspeed_adamw), or remove 'zenflow'"
        is_certain = not may_be_given or subject.run.recipe is not None
        yield Hit(_ZENFLOW, message, hint, (), None if is_certain else "warning")
