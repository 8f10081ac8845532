"""Defects of DeepSpeed's learning-rate schedules."""

from zerokit.lint.defect_conditions import LISTS, Condition, absent, schedule
from zerokit.lint.defects.defect import Defect
from zerokit.lint.optimizer_facts import schedule_argument
from zerokit.lint.subject import Subject

_TYPE = "scheduler.type"
_PARAMS = "scheduler.params"


def _all_steps_warm_up(subject: Subject) -> bool:
    total = schedule_argument(subject, "total_num_steps")
    return isinstance(total, int) and total == schedule_argument(subject, "warmup_num_steps")


def _counts_stairs(subject: Subject) -> bool:
    names = ("cycle_first_stair_count", "cycle_second_stair_count")
    return any(schedule_argument(subject, name) for name in names)


DEFECTS = (
    Defect(
        id="warmup-first-step",
        releases=".. 0.15.3",
        harm="wrong results",
        summary="The first step is taken with the optimizer's full learning rate, before warming up",
        when=schedule("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"),
        at=_TYPE,
        severity="warning",
        source="#6597; measured",
    ),
    Defect(
        id="warmup-groups",
        releases="0.17.2 .. 0.19.4",
        harm="wrong results",
        summary="All groups warm up to the learning rate of the first one",
        when=schedule("WarmupLR") & absent("scheduler.params.warmup_max_lr"),
        beyond="parameter groups of different learning rates",
        at=_TYPE,
        instead='add "warmup_max_lr"',
        severity="warning",
        source="#8171, introduced by #7360; measured",
    ),
    Defect(
        id="cosine-first-step-groups",
        releases=".. 0.19.0",
        harm="wrong results",
        summary="Groups other than the first take the first step with their full learning rate",
        beyond="the schedule WarmupCosineLR with several parameter groups",
        source="#7969; measured",
    ),
    Defect(
        id="cosine-rises-again",
        releases=".. 0.19.3",
        harm="wrong results",
        summary="After the last step of the schedule the learning rate rises again",
        beyond="the schedule WarmupCosineLR, and a run beyond total_num_steps",
        source="#8142; measured",
    ),
    Defect(
        id="cosine-no-decay",
        releases=".. 0.19.3",
        harm="crash",
        summary="The step after warming up divides by zero",
        when=schedule("WarmupCosineLR")
        & Condition("`total_num_steps` equal to `warmup_num_steps`", _all_steps_warm_up),
        at="scheduler.params.total_num_steps",
        instead='lower "warmup_num_steps"',
        source="#8142; measured",
    ),
    Defect(
        id="one-cycle-stairs",
        releases=".. 0.19.4",
        harm="wrong results",
        summary="The counts have no effect",
        when=Condition("`cycle_first_stair_count` or `cycle_second_stair_count`", _counts_stairs),
        at=_PARAMS,
        source="#8179; measured",
    ),
    Defect(
        id="one-cycle-lists",
        releases=".. 0.19.6",
        harm="crash",
        summary="A list is taken as one group's value",
        when=schedule("OneCycle") & LISTS,
        at=_PARAMS,
        instead="write one value",
        source="#8201",
    ),
)
