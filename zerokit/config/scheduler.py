"""The section `scheduler`. What its `params` may hold depends on its `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

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
from zerokit.errors import did_you_mean

DEEPSPEED_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's own, by their exact names (`deepspeed/runtime/lr_schedules.py`)."""

TORCH_SCHEDULERS = (
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
)
"""Classes of `torch.optim.lr_scheduler`, as of PyTorch 2.13; they work in stage 0 in fp32 only."""

Rate = OneOrMore[NonNegativeFloat]


class SchedulerParams(Section):
    """Arguments of a schedule's constructor."""

    read_by: ClassVar[Reader] = "call"

    def get(self, name: str) -> Any:
        """The argument of that name, the constructor's default if it is not set; None if there is none."""
        return getattr(self, name) if name in type(self).model_fields else None


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

    decay_lr_rate: float = 0.0
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

    decay_mom_rate: float = 0.0
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


def _known_scheduler(name: str) -> str:
    if name in DEEPSPEED_SCHEDULERS or name in TORCH_SCHEDULERS:
        return name
    known = (*DEEPSPEED_SCHEDULERS, *TORCH_SCHEDULERS)
    same = next((choice for choice in known if choice.lower() == name.lower()), None)
    hint = did_you_mean(name, [same] if same else DEEPSPEED_SCHEDULERS)
    context = {"name": name, "hint": hint} | ({"meant": same} if same else {})
    raise PydanticCustomError("name", "neither DeepSpeed nor PyTorch has a scheduler '{name}'", context)


def params_of_scheduler(name: object) -> type[SchedulerParams] | None:
    """The model of `scheduler.params` for a schedule's `type`, or None if the type is not known."""
    if not isinstance(name, str):
        return None
    if name in TORCH_SCHEDULERS:
        from zerokit.config.torch_schedulers import TORCH_SCHEDULE_PARAMS

        return TORCH_SCHEDULE_PARAMS[name]
    return DEEPSPEED_SCHEDULE_PARAMS.get(name)


class Scheduler(Section):
    """The learning-rate schedule that DeepSpeed builds.

    DeepSpeed ignores it when the training script passes one of its own. Under the Trainer it overrides
    the argument `lr_scheduler_type` in silence.
    """

    type: Annotated[str, AfterValidator(_known_scheduler), Field(examples=list(DEEPSPEED_SCHEDULERS))]
    """One of DeepSpeed's schedules, or the exact name of a class in `torch.optim.lr_scheduler`. Needed:
    without it DeepSpeed ignores the section."""

    params: SerializeAsAny[SchedulerParams]
    """Arguments of its constructor, such as `warmup_num_steps` and `total_num_steps`. Needed: DeepSpeed fails
    without it."""

    @field_validator("params", mode="plain")
    @classmethod
    def _params_of_type(cls, value: Any, info: ValidationInfo) -> SchedulerParams:
        model = params_of_scheduler(info.data.get("type"))
        if model is not None:
            return model.model_validate(value)
        if isinstance(value, dict):
            return SchedulerParams.defaults()  # The type is wrong, which is mistake enough.
        return SchedulerParams.model_validate(value)
