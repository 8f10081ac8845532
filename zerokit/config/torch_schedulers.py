"""`scheduler.params` of the classes of `torch.optim.lr_scheduler`.

Ranges are those that the constructors of PyTorch 2.13 check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from zerokit.config.base import ExactPositive, Fraction, Int, OneOrMore, Positive, PositiveFloat
from zerokit.config.scheduler_params import SchedulerParams


class TorchScheduleParams(SchedulerParams):
    """What nearly all of PyTorch's schedules have."""

    last_epoch: Int = -1
    """Steps made before. Default -1, none."""


class StepLRParams(TorchScheduleParams):
    """`StepLR`."""

    step_size: Positive
    """Steps after which the learning rate falls. Needed."""

    gamma: float = 0.1
    """Factor by which it falls."""


class MultiStepLRParams(TorchScheduleParams):
    """`MultiStepLR`."""

    milestones: list[Int]
    """Steps at which the learning rate falls. Needed."""

    gamma: float = 0.1
    """Factor by which it falls."""


class ConstantLRParams(TorchScheduleParams):
    """`ConstantLR`."""

    factor: Fraction = 1 / 3
    """Factor on the learning rate until `total_iters`."""

    total_iters: Int = 5
    """Steps with the factor."""


class LinearLRParams(TorchScheduleParams):
    """`LinearLR`."""

    start_factor: Annotated[float, Field(gt=0, le=1)] = 1 / 3
    """Factor on the learning rate of the first step."""

    end_factor: Fraction = 1.0
    """Factor from `total_iters` on."""

    total_iters: Int = 5
    """Steps between the two."""


class ExponentialLRParams(TorchScheduleParams):
    """`ExponentialLR`."""

    gamma: float
    """Factor on the learning rate at each step. Needed."""


class PolynomialLRParams(TorchScheduleParams):
    """`PolynomialLR`."""

    total_iters: Int = 5
    """Steps until the learning rate is 0."""

    power: float = 1.0
    """Power of the polynomial."""


class CosineAnnealingLRParams(TorchScheduleParams):
    """`CosineAnnealingLR`."""

    T_max: Positive
    """Steps of half a period. Needed."""

    eta_min: float = 0.0
    """Least learning rate."""


class CosineAnnealingWarmRestartsParams(TorchScheduleParams):
    """`CosineAnnealingWarmRestarts`."""

    T_0: ExactPositive
    """Steps until the first restart. Needed."""

    T_mult: ExactPositive = 1
    """Factor by which each period is longer than the one before."""

    eta_min: float = 0.0
    """Least learning rate."""


class CyclicLRParams(TorchScheduleParams):
    """`CyclicLR`."""

    base_lr: OneOrMore[float]
    """Least learning rate. Needed."""

    max_lr: OneOrMore[float]
    """Greatest learning rate. Needed."""

    step_size_up: PositiveFloat = 2000
    """Steps of the way up."""

    step_size_down: PositiveFloat | None = None
    """Steps of the way down. Default none: as many."""

    mode: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    """How the height changes from cycle to cycle."""

    gamma: float = 1.0
    """Factor of `exp_range`."""

    scale_fn: None = None
    """A Python function, which a file cannot hold."""

    scale_mode: Literal["cycle", "iterations"] = "cycle"
    """What `scale_fn` is given."""

    cycle_momentum: bool = True
    """Move the momentum as well, the other way round."""

    base_momentum: OneOrMore[float] = 0.8
    """Least momentum."""

    max_momentum: OneOrMore[float] = 0.9
    """Greatest momentum."""


class OneCycleLRParams(TorchScheduleParams):
    """`OneCycleLR`."""

    max_lr: OneOrMore[float]
    """Greatest learning rate. Needed."""

    total_steps: ExactPositive | None = None
    """Steps of the cycle. Needed, unless `epochs` and `steps_per_epoch` are given."""

    epochs: ExactPositive | None = None
    """Epochs of the cycle."""

    steps_per_epoch: ExactPositive | None = None
    """Steps of an epoch."""

    pct_start: Fraction = 0.3
    """Share of the way up."""

    anneal_strategy: Literal["cos", "linear"] = "cos"
    """Shape of the way up and down."""

    cycle_momentum: bool = True
    """Move the momentum as well, the other way round."""

    base_momentum: OneOrMore[float] = 0.85
    """Least momentum."""

    max_momentum: OneOrMore[float] = 0.95
    """Greatest momentum."""

    div_factor: float = 25.0
    """`max_lr` over the learning rate of the first step."""

    final_div_factor: float = 1e4
    """Learning rate of the first step over that of the last."""

    three_phase: bool = False
    """Add a third phase, down to the last learning rate."""

    @model_validator(mode="after")
    def _needs_steps(self) -> Self:
        if self.total_steps is None and None in (self.epochs, self.steps_per_epoch):
            raise PydanticCustomError(
                "steps",
                "'OneCycleLR' needs 'total_steps', or 'epochs' and 'steps_per_epoch'",
                {"hint": "Add 'total_steps'"},
            )
        return self


class ReduceLROnPlateauParams(SchedulerParams):
    """`ReduceLROnPlateau`. Its step needs a measure, which DeepSpeed does not give it."""

    mode: Literal["min", "max"] = "min"
    """Whether the measure is to fall or to rise."""

    factor: Annotated[float, Field(lt=1)] = 0.1
    """Factor by which the learning rate falls."""

    patience: Int = 10
    """Steps without improvement that are borne."""

    threshold: float = 1e-4
    """Least change that counts."""

    threshold_mode: Literal["rel", "abs"] = "rel"
    """Whether that is a share or a difference."""

    cooldown: Int = 0
    """Steps after a fall that do not count."""

    min_lr: OneOrMore[float] = 0
    """Least learning rate."""

    eps: float = 1e-8
    """Least change of the learning rate."""


class FunctionParams(TorchScheduleParams):
    """`LambdaLR`, `MultiplicativeLR`, `SequentialLR` and `ChainedScheduler`: they take Python objects."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        raise PydanticCustomError(
            "function",
            "this scheduler takes Python functions or objects, which a file cannot hold",
            {"hint": "Use one of DeepSpeed's schedules, or build the schedule in the script"},
        )


TORCH_SCHEDULE_PARAMS: Mapping[str, type[SchedulerParams]] = {
    "ChainedScheduler": FunctionParams,
    "ConstantLR": ConstantLRParams,
    "CosineAnnealingLR": CosineAnnealingLRParams,
    "CosineAnnealingWarmRestarts": CosineAnnealingWarmRestartsParams,
    "CyclicLR": CyclicLRParams,
    "ExponentialLR": ExponentialLRParams,
    "LambdaLR": FunctionParams,
    "LinearLR": LinearLRParams,
    "MultiStepLR": MultiStepLRParams,
    "MultiplicativeLR": FunctionParams,
    "OneCycleLR": OneCycleLRParams,
    "PolynomialLR": PolynomialLRParams,
    "ReduceLROnPlateau": ReduceLROnPlateauParams,
    "SequentialLR": FunctionParams,
    "StepLR": StepLRParams,
}
"""Class of `torch.optim.lr_scheduler` -> the arguments of its constructor."""
