"""Learning-rate schedules."""

from collections.abc import Iterator

from zerokit.config.base import AUTO
from zerokit.findings import SetValue
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    SCHEDULER,
    optimizer_argument,
    optimizer_name,
    optimizer_params,
    optimizer_type,
    rate_of_schedule,
    schedule_argument,
    schedule_name,
)
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject

_DECAYS = ("WarmupDecayLR", "WarmupCosineLR")
_RATES_OF_TRAINER = ((OPTIMIZER, "lr"), (SCHEDULER, "warmup_max_lr"))


@rule("decay-default-rate")
def decay_default_rate(subject: Subject) -> Iterator[Hit]:
    """'WarmupDecayLR' that rises to 0.001 whatever the optimizer's rate"""
    if schedule_name(subject) != "WarmupDecayLR" or not subject.is_absent(*SCHEDULER, "warmup_max_lr"):
        return
    path, rate = (*SCHEDULER, "warmup_max_lr"), subject.written_value(*OPTIMIZER, "lr")
    default = schedule_argument(subject, "warmup_max_lr")
    message = f"'warmup_max_lr' is absent, so the rate rises to {default:g}"
    if isinstance(rate, int | float):
        if rate != default:
            message += f" instead of the optimizer's {rate:g}"
            yield Hit(SCHEDULER, message, f'Add "warmup_max_lr": {rate:g}', (SetValue(path, rate),))
    elif rate == AUTO:
        yield Hit(SCHEDULER, message, 'Add "warmup_max_lr": "auto"', (SetValue(path, AUTO),), "warning")
    else:
        yield Hit(SCHEDULER, message, 'Add "warmup_max_lr"', severity="warning")


@rule("overridden-rate")
def overridden_rate(subject: Subject) -> Iterator[Hit]:
    """A learning rate that the schedule overrides"""
    if subject.run.target == "trainer" and subject.run.recipe is None:  # a recipe is compared
        rates = {key: subject.written_value(*path, key) for path, key in _RATES_OF_TRAINER}
        if all(isinstance(rate, int | float) for rate in rates.values()) and len(set(rates.values())) > 1:
            shown = " and ".join(f"'{key}' {rate:g}" for key, rate in rates.items())
            message = f"the Trainer stops: {shown} cannot both equal its learning_rate"
            yield Hit(
                (*OPTIMIZER, "lr"), message, 'Write "auto" for both, or the rate that is meant', severity="error"
            )
            return
    key = rate_of_schedule(subject)
    if key is None or key == "lr_range_test_min_lr" or not subject.is_set(*SCHEDULER, key):
        return
    peak, name = schedule_argument(subject, key), schedule_name(subject)
    for argument in ("lr", "muon_lr", "adam_lr"):
        path = (*OPTIMIZER, argument)
        rate = optimizer_argument(subject, argument)
        if not subject.is_set(*path) or not isinstance(rate, int | float) or not isinstance(peak, int | float):
            continue
        if rate != peak and optimizer_name(subject) is not None:
            message = f"'{argument}' {rate:g} is never used: '{name}' sets the rate by '{key}' {peak:g}"
            yield Hit(path, message, f"Write the rate that is meant into '{key}', and the same here")


@rule("falling-warmup")
def falling_warmup(subject: Subject) -> Iterator[Hit]:
    """A schedule whose minimum is above its maximum"""
    for low, high in (
        ("warmup_min_lr", "warmup_max_lr"),
        ("cycle_min_lr", "cycle_max_lr"),
        ("cycle_min_mom", "cycle_max_mom"),
    ):
        least, greatest = schedule_argument(subject, low), schedule_argument(subject, high)
        of_optimizer = high == "warmup_max_lr" and subject.is_absent(*SCHEDULER, high)
        if of_optimizer and schedule_name(subject) == "WarmupLR":
            greatest, high = optimizer_argument(subject, "lr"), "lr"
        if isinstance(least, int | float) and isinstance(greatest, int | float) and least > greatest:
            path = (*SCHEDULER, low)
            place = path if subject.is_set(*path) else (*SCHEDULER, high)
            message = f"'{low}' {least:g} is above '{high}' {greatest:g}"
            yield Hit(place, message, "Swap the values, or lower the first")
    for name in ("warmup_min_ratio", "cos_min_ratio"):
        ratio = schedule_argument(subject, name)
        if isinstance(ratio, int | float) and ratio > 1:
            message = f"'{name}' {ratio:g} is above 1, which is the optimizer's rate"
            yield Hit((*SCHEDULER, name), message, "Lower it to a share of that rate")


@rule("warmup-exceeds-total")
def warmup_exceeds_total(subject: Subject) -> Iterator[Hit]:
    """A warmup that is longer than the training"""
    if schedule_name(subject) not in _DECAYS:
        return
    total, warmup = (schedule_argument(subject, key) for key in ("total_num_steps", "warmup_num_steps"))
    if not isinstance(total, int) or not isinstance(warmup, int) or total >= max(2, warmup):
        return
    path = (*SCHEDULER, "warmup_num_steps")
    by_default = "" if subject.is_set(*path) else ", its default,"
    message = f"'warmup_num_steps' {warmup}{by_default} is more than 'total_num_steps' {total}"
    place = path if subject.is_set(*path) else (*SCHEDULER, "total_num_steps")
    yield Hit(place, message, 'Lower "warmup_num_steps", or raise "total_num_steps"')


_SECOND_BETA = 0.99
"""What OneCycle writes as the second beta; `_initialize_momentum` in `deepspeed/runtime/lr_schedules.py`."""

_MOMENTUM = (*SCHEDULER, "cycle_momentum")


def _has_betas(subject: Subject) -> bool | None:
    """Whether the optimizer has betas for the schedule to move; None if there is no optimizer for sure."""
    name, params = optimizer_name(subject), optimizer_params(subject)
    if name is None or params is None:
        return None
    return name != "muon" and "betas" in type(params).model_fields


@rule("one-cycle-betas")
def one_cycle_betas(subject: Subject) -> Iterator[Hit]:
    """'OneCycle' that replaces the optimizer's betas"""
    if schedule_name(subject) != "OneCycle" or not _has_betas(subject):
        return
    betas = optimizer_argument(subject, "betas")
    if schedule_argument(subject, "cycle_momentum") is not True or not isinstance(betas, list):
        return
    if betas[1] != _SECOND_BETA or subject.is_set(*OPTIMIZER, "betas"):
        written = subject.is_set(*OPTIMIZER, "betas")
        which = f"'betas' {betas}" if written else f"the default betas {betas}"
        message = f"'OneCycle' moves the first of {which} and sets the second to {_SECOND_BETA}"
        yield Hit(subject.nearest_set(*_MOMENTUM), message, 'Set "cycle_momentum" to false to keep the betas')


@rule("one-cycle-momentum")
def one_cycle_momentum(subject: Subject) -> Iterator[Hit]:
    """'OneCycle' momentum for an optimizer without betas"""
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
