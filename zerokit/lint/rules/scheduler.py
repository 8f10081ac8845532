"""Learning-rate schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.scheduler import TORCH_SCHEDULERS
from zerokit.findings import SetValue
from zerokit.lint.optimizer_facts import (
    OPTIMIZER,
    SCHEDULER,
    optimizer_argument,
    optimizer_name,
    rate_of_schedule,
    schedule_argument,
    schedule_name,
)
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("scheduler")
_WARMUPS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
_DECAYS = ("WarmupDecayLR", "WarmupCosineLR")
_RATES_OF_TRAINER = ((OPTIMIZER, "lr"), (SCHEDULER, "warmup_max_lr"))
_LINEAR: dict[str, Any] = {"warmup_num_steps": 100, "warmup_type": "linear"}


def with_schedule(kind: str, /, *, lr: Any = 1e-4, stage: int = 2, **params: Any) -> dict[str, Any]:
    """A config for an example."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "scheduler": {"type": kind, "params": params},
        ZERO: {"stage": stage},
    }


@rule(
    "torch-scheduler",
    stops=True,
    bad=with_schedule("CosineAnnealingLR", T_max=1000),
    good=with_schedule("WarmupCosineLR", total_num_steps=1000, **_LINEAR),
)
def torch_scheduler(subject: Subject) -> Iterator[Hit]:
    """A PyTorch schedule for an optimizer that DeepSpeed wraps

    DeepSpeed finds the schedules of `torch.optim.lr_scheduler` by their names and hands them the optimizer
    as it is by then: wrapped by ZeRO, fp16 or bf16. PyTorch takes none but its own and stops with
    "DeepSpeedZeroOptimizer is not an Optimizer". Only in stage 0 and fp32 there is no wrapper.

    Use one of DeepSpeed's schedules, or build PyTorch's in the script, on the optimizer before it is
    wrapped.

    Source: `_scheduler_from_config` in `deepspeed/runtime/engine.py`.
    """
    name = schedule_name(subject)
    if name in TORCH_SCHEDULERS and _is_wrapped(subject):
        message = f"PyTorch's '{name}' cannot drive the optimizers that ZeRO, bf16 and fp16 wrap"
        hint = "Use one of DeepSpeed's schedules, or build the schedule in the script"
        yield Hit(("scheduler", "type"), message, hint)


def _is_wrapped(subject: Subject) -> bool:
    return subject.stage in (1, 2, 3) or any(
        subject.value(precision, "enabled") is True for precision in ("fp16", "bf16")
    )


@rule(
    "plateau-schedule",
    severity="warning",
    bad=with_schedule("ReduceLROnPlateau", stage=0, patience=10),
    good=with_schedule("WarmupCosineLR", stage=0, total_num_steps=1000, **_LINEAR),
)
def plateau_schedule(subject: Subject) -> Iterator[Hit]:
    """'ReduceLROnPlateau', which gets the batch size as its metric

    This schedule lowers the learning rate when a measure, such as the validation loss, stops falling. The
    engine has none to pass. Its call fails, and it falls back on one with the global batch size, which was
    meant for another case. A constant never improves: after `patience` steps the learning rate is divided by
    ten, and again after as many more.

    Only a script that calls `engine.step(lr_kwargs={"metrics": ...})` at each step gets what the schedule
    promises. Better step it in the script, with the measure.

    Source: `_take_model_step` in `deepspeed/runtime/engine.py`; seen with DeepSpeed 0.19.8.
    """
    if schedule_name(subject) == "ReduceLROnPlateau" and not _is_wrapped(subject):
        message = "'ReduceLROnPlateau' gets the batch size as its measure and lowers the rate again and again"
        hint = "Build this schedule in the script, or pass the measure to engine.step as lr_kwargs"
        yield Hit(("scheduler", "type"), message, hint)


@rule(
    "decay-default-rate",
    bad=with_schedule("WarmupDecayLR", lr=2e-5, total_num_steps=1000, **_LINEAR),
    good=with_schedule("WarmupDecayLR", lr=2e-5, total_num_steps=1000, warmup_max_lr=2e-5, **_LINEAR),
)
def decay_default_rate(subject: Subject) -> Iterator[Hit]:
    """'WarmupDecayLR' that rises to 0.001 whatever the optimizer's rate

    `warmup_max_lr` of `WarmupDecayLR` is 0.001 unless it is given, while `WarmupLR` takes the optimizer's
    `lr`. An optimizer with 2e-5 is so trained with fifty times as much. The Trainer fills the key if it is
    "auto", and leaves it alone if it is absent.

    Write the peak of the schedule as `warmup_max_lr`.

    Source: the constructors in `deepspeed/runtime/lr_schedules.py`.
    """
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


@rule(
    "overridden-rate",
    severity="warning",
    stops=True,
    bad=with_schedule("WarmupLR", lr=1e-3, warmup_max_lr=2e-5, **_LINEAR),
    good=with_schedule("WarmupLR", lr=2e-5, warmup_max_lr=2e-5, **_LINEAR),
)
def overridden_rate(subject: Subject) -> Iterator[Hit]:
    """A learning rate that the schedule overrides

    A schedule with a rate of its own, such as `warmup_max_lr`, writes it into every group of parameters from
    the first step on. The optimizer's `lr` is then never used, and neither are Muon's `muon_lr` and
    `adam_lr`: both halves get the same. Two numbers that differ are a question which of them is meant.

    `WarmupLR` without `warmup_max_lr`, and `WarmupCosineLR`, keep the optimizer's rates, one per group.

    The Trainer compares both `lr` and `warmup_max_lr` with its `learning_rate`, and so stops whatever that
    is.

    Source: `update_lr` and the constructors in `deepspeed/runtime/lr_schedules.py`; `fill_match` in
    transformers `integrations/deepspeed.py`.
    """
    if subject.run.target == "trainer" and subject.run.recipe is None:  # a recipe is compared
        rates = {key: subject.written_value(*path, key) for path, key in _RATES_OF_TRAINER}
        if all(isinstance(rate, int | float) for rate in rates.values()) and len(set(rates.values())) > 1:
            shown = " and ".join(f"'{key}' {rate:g}" for key, rate in rates.items())
            message = f"the Trainer stops: {shown} cannot both equal its learning_rate"
            yield Hit(
                (*OPTIMIZER, "lr"),
                message,
                'Write "auto" for both, or the rate that is meant',
                severity="error",
            )
            return
    key = rate_of_schedule(subject)
    if key is None or key == "lr_range_test_min_lr" or not subject.is_set(*SCHEDULER, key):
        return
    peak, name = schedule_argument(subject, key), schedule_name(subject)
    for argument in ("lr", "muon_lr", "adam_lr"):
        path = (*OPTIMIZER, argument)
        rate = optimizer_argument(subject, argument)
        if (
            not subject.is_set(*path)
            or not isinstance(rate, int | float)
            or not isinstance(peak, int | float)
        ):
            continue
        if rate != peak and optimizer_name(subject) is not None:
            message = f"'{argument}' {rate:g} is never used: '{name}' sets the rate by '{key}' {peak:g}"
            yield Hit(path, message, f"Write the rate that is meant into '{key}', and the same here")


@rule(
    "falling-warmup",
    severity="warning",
    bad=with_schedule("WarmupLR", lr=1e-3, warmup_min_lr=1.0, warmup_max_lr=1e-3, **_LINEAR),
    good=with_schedule("WarmupLR", lr=1e-3, warmup_min_lr=0.0, warmup_max_lr=1e-3, **_LINEAR),
)
def falling_warmup(subject: Subject) -> Iterator[Hit]:
    """A schedule whose minimum is above its maximum

    DeepSpeed does not compare them. A warmup then begins at the higher rate, and the first steps are the
    largest: with 1.0 the model is lost before training has begun.

    Source: the constructors in `deepspeed/runtime/lr_schedules.py`.
    """
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


@rule(
    "warmup-exceeds-total",
    severity="warning",
    bad=with_schedule("WarmupCosineLR", total_num_steps=500, warmup_type="linear"),
    good=with_schedule("WarmupCosineLR", total_num_steps=500, **_LINEAR),
)
def warmup_exceeds_total(subject: Subject) -> Iterator[Hit]:
    """A warmup that is longer than the training

    The rate then never reaches its peak, and never falls either. `warmup_num_steps` is 1000 unless it is
    given, which is more than a short fine-tuning has. DeepSpeed prints a line and goes on.

    Both count optimizer steps, not batches.

    Source: the constructors in `deepspeed/runtime/lr_schedules.py`.
    """
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


@rule(
    "warmup-of-one",
    severity="info",
    bad=with_schedule("WarmupLR", warmup_num_steps=1, warmup_type="linear"),
    good=with_schedule("WarmupLR", warmup_num_steps=10, warmup_type="linear"),
)
def warmup_of_one(subject: Subject) -> Iterator[Hit]:
    """A warmup of one step, which takes two steps

    DeepSpeed makes `warmup_num_steps` at least 2, and since 0.19.6 refuses 0. So there is no schedule
    without a warmup: the first step always has the least rate, 0 unless it is given, and changes nothing.

    To have no warmup, set `warmup_min_lr` to the full rate (`warmup_min_ratio` to 1 with `WarmupCosineLR`).

    Source: the constructors in `deepspeed/runtime/lr_schedules.py`.
    """
    path = (*SCHEDULER, "warmup_num_steps")
    if schedule_name(subject) in _WARMUPS and subject.is_set(*path, to=1):
        full = "warmup_min_ratio" if schedule_name(subject) == "WarmupCosineLR" else "warmup_min_lr"
        message = "'warmup_num_steps' 1 is taken as 2, and the first step has the least rate"
        yield Hit(path, message, f'Write 2, or set "{full}" for no warmup')


@rule(
    "range-test-left-on",
    severity="warning",
    bad=with_schedule("LRRangeTest", lr_range_test_min_lr=1e-5),
    good=with_schedule("WarmupCosineLR", total_num_steps=1000, **_LINEAR),
)
def range_test_left_on(subject: Subject) -> Iterator[Hit]:
    """A learning-rate range test left in the file

    `LRRangeTest` raises the learning rate step by step and without an end, to find out from where on
    training breaks. It is for a trial run of some hundred steps.

    Source: `LRRangeTest` in `deepspeed/runtime/lr_schedules.py`.
    """
    if schedule_name(subject) == "LRRangeTest":
        message = "'LRRangeTest' raises the learning rate without an end, to find where training breaks"
        yield Hit(("scheduler", "type"), message, "Use a schedule for training, once a rate is found")


@rule(
    "schedule-start",
    severity="warning",
    bad=with_schedule("WarmupLR", last_batch_iteration=5000, **_LINEAR),
    good=with_schedule("WarmupLR", **_LINEAR),
)
def schedule_start(subject: Subject) -> Iterator[Hit]:
    """A schedule that does not start at step 0

    `last_batch_iteration` is for code that restores a schedule by hand. DeepSpeed sets it itself when it
    loads a checkpoint. In a file it makes each new run skip the steps before it, the warmup among them.

    Source: `load_state_dict` of the classes in `deepspeed/runtime/lr_schedules.py`.
    """
    path = (*SCHEDULER, "last_batch_iteration")
    start = schedule_argument(subject, "last_batch_iteration")
    if isinstance(start, int) and start >= 0:
        message = f"'last_batch_iteration' {start} lets every new run begin at step {start + 1}"
        yield Hit(path, message, "Remove the key: a checkpoint sets it")
