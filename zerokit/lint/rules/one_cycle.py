"""The schedule OneCycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.conditions import DECAY_STEPS
from zerokit.findings import SetValue
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    SCHEDULER,
    optimizer_argument,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    schedule_argument,
    schedule_name,
)
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.rules.scheduler import with_schedule
from zerokit.lint.subject import Subject

rule = Rules("scheduler")
_SECOND_BETA = 0.99
"""What OneCycle writes as the second beta; `_initialize_momentum` in `deepspeed/runtime/lr_schedules.py`."""

_MOMENTUM = (*SCHEDULER, "cycle_momentum")


def _one_cycle(**params: Any) -> dict[str, Any]:
    """A config for an example."""
    return with_schedule("OneCycle", lr=1e-3, cycle_min_lr=1e-4, cycle_max_lr=1e-3, **params)


def _has_betas(subject: Subject) -> bool | None:
    """Whether the optimizer has betas for the schedule to move; None if there is no optimizer for sure."""
    name, params = optimizer_name(subject), optimizer_params(subject)
    if name is None or params is None:
        return None
    return name != "muon" and "betas" in type(params).model_fields


@rule("one-cycle-betas", severity="warning", bad=_one_cycle(), good=_one_cycle(cycle_momentum=False))
def one_cycle_betas(subject: Subject) -> Iterator[Hit]:
    """'OneCycle' that replaces the optimizer's betas

    `cycle_momentum` is true by default. The schedule then writes both betas from the first step on: the
    first moves between `cycle_max_mom` and `cycle_min_mom`, and the second is 0.99, whatever the optimizer's
    `betas` are and though Adam's is 0.999 by default.

    Set `cycle_momentum` to false to keep `betas`.

    Source: `OneCycle._initialize_momentum` in `deepspeed/runtime/lr_schedules.py`.
    """
    if schedule_name(subject) != "OneCycle" or not _has_betas(subject):
        return
    betas = optimizer_argument(subject, "betas")
    if schedule_argument(subject, "cycle_momentum") is not True or not isinstance(betas, list):
        return
    if betas[1] != _SECOND_BETA or subject.is_set(*OPTIMIZER, "betas"):
        written = subject.is_set(*OPTIMIZER, "betas")
        which = f"'betas' {betas}" if written else f"the default betas {betas}"
        message = f"'OneCycle' moves the first of {which} and sets the second to {_SECOND_BETA}"
        place = _MOMENTUM if subject.is_set(*_MOMENTUM) else SCHEDULER
        yield Hit(place, message, 'Set "cycle_momentum" to false to keep the betas')


@rule(
    "one-cycle-momentum",
    severity="warning",
    bad={
        **_one_cycle(cycle_momentum=True),
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
        "zero_allow_untested_optimizer": True,
    },
    good={
        **_one_cycle(cycle_momentum=False),
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
        "zero_allow_untested_optimizer": True,
    },
)
def one_cycle_momentum(subject: Subject) -> Iterator[Hit]:
    """'OneCycle' momentum for an optimizer without betas

    `OneCycle` moves the first of `betas` and knows no other momentum. With an optimizer that has none, such
    as SGD and Muon, it prints a line and leaves the momentum alone.

    Source: `OneCycle._initialize_momentum` in `deepspeed/runtime/lr_schedules.py`.
    """
    if schedule_name(subject) != "OneCycle" or _has_betas(subject) is not False:
        return
    if schedule_argument(subject, "cycle_momentum") is not True:
        return
    for key in ("cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"):
        path = (*SCHEDULER, key)
        if subject.is_set(*path):
            message = f"'{key}' has no effect with '{optimizer_type(subject)}', which has no betas"
            fix = (SetValue(path, False),) if key == "cycle_momentum" else ()
            yield Hit(path, message, 'Set "cycle_momentum" to false', fix)
            return


@rule(
    "one-cycle-decay",
    severity="warning",
    bad=_one_cycle(cycle_momentum=False, decay_lr_rate=0.1),
    good=_one_cycle(cycle_momentum=False, decay_lr_rate=0.1, decay_step_size=100),
)
def one_cycle_decay(subject: Subject) -> Iterator[Hit]:
    """A decay after the cycle without effect

    After its cycle `OneCycle` lets the rate fall by `decay_lr_rate` every `decay_step_size` steps. That is 0
    by default, which means no decay at all: the rate stays at `cycle_min_lr`.

    Source: `OneCycle._initialize_cycle` in `deepspeed/runtime/lr_schedules.py`.
    """
    for path, idle in subject.unused.items():
        if idle.acts.when is DECAY_STEPS:
            message = f"'{path[-1]}' {idle.reason}"
            yield Hit(path, message, 'Add "decay_step_size", or remove the key')
