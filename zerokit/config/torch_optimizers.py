"""`optimizer.params` of the classes of `torch.optim` that DeepSpeed finds by their exact name.

Ranges are those that the constructors of PyTorch 2.13 check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from zerokit.config.base import NonNegativeFloat, OrAuto, Positive, PositiveFloat
from zerokit.config.optimizer_params import (
    AdamLike,
    Betas,
    Decayed,
    LearningRate,
    OptimizerParams,
    PyTorchSgd,
)


class Switches(OptimizerParams):
    """What most classes of PyTorch have."""

    foreach: bool | None = None
    """Update all parameters with one call per operation. Default none: as PyTorch sees fit."""

    maximize: bool = False
    """Climb rather than descend."""


class MoreSwitches(Switches):
    """And these."""

    capturable: bool = False
    """Safe to record in a CUDA graph."""

    differentiable: bool = False
    """Let gradients flow through the step."""


class SGDParams(PyTorchSgd):
    """`torch.optim.SGD`."""

    lr: OrAuto[NonNegativeFloat] = 1e-3

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise PydanticCustomError(
                "nesterov",
                "'nesterov' needs a 'momentum' above 0 and no 'dampening'",
                {"hint": "Give a 'momentum', or remove 'nesterov'"},
            )
        return self


class ASGDParams(Decayed, MoreSwitches):
    """`torch.optim.ASGD`."""

    lr: OrAuto[NonNegativeFloat] = 1e-2
    lambd: float = 1e-4
    """Decay of the weights."""

    alpha: float = 0.75
    """Power by which the learning rate falls."""

    t0: float = 1e6
    """Step at which the averaging starts."""


class AdadeltaParams(Decayed, MoreSwitches):
    """`torch.optim.Adadelta`."""

    lr: OrAuto[NonNegativeFloat] = 1.0
    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Share of the past in the average of squares."""

    eps: OrAuto[NonNegativeFloat] = 1e-6
    """Added to the denominator."""


class AdafactorParams(Decayed, Switches):
    """`torch.optim.Adafactor`."""

    lr: OrAuto[NonNegativeFloat] = 1e-2
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Power by which the share of the past rises."""

    eps: Annotated[list[NonNegativeFloat | None], Field(min_length=2, max_length=2)] = Field(
        default=[None, 1e-3]
    )
    """Least mean square of a gradient, and least scale of a parameter."""

    d: Annotated[float, Field(ge=1)] = 1.0
    """Bound of an update's mean square."""


class AdamaxParams(AdamLike, MoreSwitches):
    """`torch.optim.Adamax`."""

    lr: OrAuto[NonNegativeFloat] = 2e-3


class NAdamParams(AdamLike, MoreSwitches):
    """`torch.optim.NAdam`."""

    lr: OrAuto[NonNegativeFloat] = 2e-3
    momentum_decay: NonNegativeFloat = 4e-3
    """How fast the momentum falls."""

    decoupled_weight_decay: bool = False
    """Decouple weight decay from the gradient."""


class RAdamParams(AdamLike, MoreSwitches):
    """`torch.optim.RAdam`."""

    decoupled_weight_decay: bool = False
    """Decouple weight decay from the gradient."""


class RMSpropParams(Decayed, MoreSwitches):
    """`torch.optim.RMSprop`."""

    lr: OrAuto[NonNegativeFloat] = 1e-2
    alpha: NonNegativeFloat = 0.99
    """Share of the past in the average of squares."""

    eps: OrAuto[NonNegativeFloat] = 1e-8
    """Added to the denominator."""

    momentum: NonNegativeFloat = 0.0
    """Share of the past steps that is kept."""

    centered: bool = False
    """Subtract the average of the gradient."""


class RpropParams(LearningRate, MoreSwitches):
    """`torch.optim.Rprop`."""

    lr: OrAuto[NonNegativeFloat] = 1e-2
    etas: Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)] = Field(default=[0.5, 1.2])
    """Factors by which a step shrinks, below 1, and grows, above 1."""

    step_sizes: Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)] = Field(
        default=[1e-6, 50.0]
    )
    """Least and greatest step."""


class SparseAdamParams(OptimizerParams):
    """`torch.optim.SparseAdam`."""

    lr: OrAuto[PositiveFloat] = 1e-3
    """Learning rate, before any schedule. "auto": the Trainer's `learning_rate`."""

    betas: OrAuto[Betas] = Field(default=[0.9, 0.999])
    """Share of the past in the averages of the gradient and of its square."""

    eps: OrAuto[PositiveFloat] = 1e-8
    """Added to the denominator."""

    maximize: bool = False
    """Climb rather than descend."""


class LBFGSParams(LearningRate):
    """`torch.optim.LBFGS`. Its step needs a function, which DeepSpeed does not give it."""

    lr: OrAuto[NonNegativeFloat] = 1.0
    max_iter: Positive = 20
    """Iterations per step."""

    max_eval: Positive | None = None
    """Evaluations per step. Default none: 1.25 times `max_iter`."""

    tolerance_grad: float = 1e-7
    """Gradient at which to stop."""

    tolerance_change: float = 1e-9
    """Change at which to stop."""

    history_size: Positive = 100
    """Past steps that are kept."""

    line_search_fn: Literal["strong_wolfe"] | None = None
    """Line search. Default none."""


TORCH_PARAMS: Mapping[str, type[OptimizerParams]] = {
    "ASGD": ASGDParams,
    "Adadelta": AdadeltaParams,
    "Adafactor": AdafactorParams,
    "Adamax": AdamaxParams,
    "LBFGS": LBFGSParams,
    "NAdam": NAdamParams,
    "RAdam": RAdamParams,
    "RMSprop": RMSpropParams,
    "Rprop": RpropParams,
    "SGD": SGDParams,
    "SparseAdam": SparseAdamParams,
}
"""Class of `torch.optim` -> the arguments of its constructor."""
