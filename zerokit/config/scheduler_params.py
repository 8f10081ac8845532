"""`scheduler.params` of DeepSpeed's own schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from zerokit.config.base import (
    ExactPositive,
    Fraction,
    Int,
    NonNegative,
    NonNegativeFloat,
    OneOrMore,
    OrAuto,
    Positive,
    PositiveFloat,
    Reader,
    Section,
)
from zerokit.config.conditions import DECAY_STEPS, Acts

Rate = OneOrMore[NonNegativeFloat]


class SchedulerParams(Section):
    """Arguments of a schedule's constructor."""

    read_by: ClassVar[Reader] = "call"

    def get(self, name: str) -> Any:
        """The argument of that name, the constructor's default if it is not set; None if there is none."""
        return getattr(self, name, None) if name in type(self).model_fields else None


class DeepSpeedScheduleParams(SchedulerParams):
    """What all of DeepSpeed's schedules have."""

    last_batch_iteration: Int = -1
    """Steps made before; the engine sets it from a checkpoint. Default -1, none."""


class LRRangeTestParams(DeepSpeedScheduleParams):
    """`LRRangeTest`: a learning rate that rises, to find the greatest one that works."""

    lr_range_test_min_lr: Rate = 1e-3
    """Learning rate of the first step."""

    lr_range_test_step_size: ExactPositive = 2000
    """Steps in which it rises by `lr_range_test_step_rate` times its start."""

    lr_range_test_step_rate: float = 1.0
    """How fast it rises."""

    lr_range_test_staircase: bool = False
    """Rise once per `lr_range_test_step_size` rather than at each step."""


class OneCycleParams(DeepSpeedScheduleParams):
    """`OneCycle`: up, down, then decay; the momentum the other way round."""

    cycle_min_lr: Rate
    """Learning rate at the start and the end of the cycle. Needed."""

    cycle_max_lr: Rate
    """Learning rate in its middle. Needed."""

    decay_lr_rate: Annotated[float, Acts(when=DECAY_STEPS)] = 0.0
    """How fast the learning rate falls after the cycle."""

    cycle_first_step_size: PositiveFloat = 2000
    """Steps of the way up."""

    cycle_second_step_size: NonNegativeFloat | None = None
    """Steps of the way down. Default none: as many."""

    cycle_first_stair_count: NonNegative = 0
    """Stairs on the way up; 0 rises at each step."""

    cycle_second_stair_count: NonNegative | None = None
    """Stairs on the way down. Default none: as many."""

    decay_step_size: NonNegativeFloat = 0
    """Steps per decay after the cycle; 0 for no decay."""

    cycle_momentum: bool = True
    """Move the first beta as well."""

    cycle_min_mom: OneOrMore[Fraction] = 0.8
    """Least first beta."""

    cycle_max_mom: OneOrMore[Fraction] = 0.9
    """Greatest first beta."""

    decay_mom_rate: Annotated[float, Acts(when=DECAY_STEPS)] = 0.0
    """How fast it changes after the cycle."""


class WarmupParams(DeepSpeedScheduleParams):
    """What the three warmup schedules have."""

    warmup_num_steps: OrAuto[ExactPositive] = 1000
    """Steps of the warmup, at least 2. "auto": the Trainer's `warmup_steps`, or accelerate's
    `DummyScheduler`."""

    warmup_type: Literal["log", "linear"] = "log"
    """Shape of the rise: with the logarithm of the step, or evenly."""


class WarmupLRParams(WarmupParams):
    """`WarmupLR`: up, then level."""

    warmup_min_lr: OrAuto[Rate] = 0.0
    """Learning rate of the first step. "auto": 0."""

    warmup_max_lr: OrAuto[Rate] | None = None
    """Learning rate after the warmup. Default none: the optimizer's. "auto": the Trainer's `learning_rate`,
    or the optimizer's under accelerate."""


class WarmupDecayLRParams(WarmupParams):
    """`WarmupDecayLR`: up, then evenly down to 0."""

    total_num_steps: OrAuto[Positive]
    """Steps of the whole training. Needed. "auto": the Trainer's number of steps, or accelerate's
    `DummyScheduler`."""

    warmup_min_lr: OrAuto[Rate] = 0.0
    """Learning rate of the first step. "auto": 0."""

    warmup_max_lr: OrAuto[Rate] = 1e-3
    """Learning rate after the warmup. "auto": the Trainer's `learning_rate`, or the optimizer's under
    accelerate."""


class WarmupCosineLRParams(WarmupParams):
    """`WarmupCosineLR`: up to the optimizer's learning rate, then down along a cosine."""

    total_num_steps: OrAuto[Positive]
    """Steps of the whole training. Needed. "auto": the Trainer's number of steps, or accelerate's
    `DummyScheduler`."""

    warmup_min_ratio: NonNegativeFloat = 0.0
    """Learning rate of the first step, as a share of the optimizer's."""

    cos_min_ratio: NonNegativeFloat = 1e-4
    """Learning rate of the last step, as a share of the optimizer's."""


DEEPSPEED_SCHEDULE_PARAMS: Mapping[str, type[SchedulerParams]] = {
    "LRRangeTest": LRRangeTestParams,
    "OneCycle": OneCycleParams,
    "WarmupLR": WarmupLRParams,
    "WarmupDecayLR": WarmupDecayLRParams,
    "WarmupCosineLR": WarmupCosineLRParams,
}
"""`type` -> its arguments."""
