"""`optimizer.params` of DeepSpeed's own optimizers, one class per constructor.

DeepSpeed hands the keys to the constructor as keyword arguments (`_configure_basic_optimizer` in
`deepspeed/runtime/engine.py`), so that an unknown one stops the run when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from zerokit.config.base import NOT_NULL, NonNegativeFloat, OrAuto, Reader, Section
from zerokit.config.conditions import DECOUPLED_ANYWAY, NOT_OFFLOADED, OFFLOADED, Acts

Beta = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[list[Beta], Field(min_length=2, max_length=2)]


class OptimizerParams(Section):
    """Arguments of an optimizer's constructor."""

    read_by: ClassVar[Reader] = "call"

    def get(self, name: str) -> Any:
        """The argument of that name, the constructor's default if it is not set; None if there is none."""
        return getattr(self, name, None) if name in type(self).model_fields else None

    def dump(self, *, all: bool = False) -> dict[str, Any]:
        """As for every section, without the defaults of what one of the two classes behind a type refuses."""
        result = super().dump(all=all)
        refused = offload_only(type(self), offloaded=True) | offload_only(type(self), offloaded=False)
        for name in refused - self.model_fields_set:
            result.pop(name, None)
        return result


class LearningRate(OptimizerParams):
    """What nearly every optimizer has."""

    lr: OrAuto[NonNegativeFloat] = 1e-3
    """Learning rate, before any schedule. "auto": the Trainer's `learning_rate`, or accelerate's
    `DummyOptim`."""


class Decayed(LearningRate):
    """And weight decay."""

    weight_decay: OrAuto[NonNegativeFloat] = 0.0
    """Share of each weight that is taken off per step, times the learning rate. "auto": the Trainer's
    `weight_decay`, or accelerate's `DummyOptim`."""


class AdamLike(Decayed):
    """And the running averages of Adam."""

    betas: OrAuto[Betas] = Field(default=[0.9, 0.999])
    """Share of the past in the averages of the gradient and of its square. "auto": the Trainer's `adam_beta1`
    and `adam_beta2`."""

    eps: OrAuto[NonNegativeFloat] = 1e-8
    """Added to the denominator. "auto": the Trainer's `adam_epsilon`."""


class AdamParams(AdamLike):
    """`Adam` and `AdamW` without `torch_adam`: DeepSpeed's FusedAdam, or its CPU Adam under offload."""

    adam_w_mode: Annotated[bool, Acts(when=DECOUPLED_ANYWAY)] = True
    """Decouple weight decay from the gradient, as AdamW does. Ignored with type `AdamW`, which always does.
    Note that `Adam` does too unless this is false."""

    bias_correction: bool = True
    """Correct the averages of the first steps."""

    amsgrad: Literal[False] = False
    """Only false is supported; `torch_adam` has it."""

    torch_adam: bool = False
    """Use PyTorch's class instead, and take its arguments."""

    set_grad_none: Annotated[bool, Acts(when=NOT_OFFLOADED)] = True
    """Let `zero_grad` drop gradients rather than fill them with zeros. Refused under offload."""

    fp32_optimizer_states: Annotated[bool | None, Acts(when=OFFLOADED)] = None
    """Keep the averages in fp32. Default none, true unless `bf16_optimizer_states` is on."""


class PyTorchAdam(AdamLike):
    """Arguments of PyTorch's Adam and AdamW alike."""

    amsgrad: bool = False
    """Divide by the greatest average so far."""

    maximize: bool = False
    """Climb rather than descend."""

    foreach: bool | None = None
    """Update all parameters with one call per operation. Default none: as PyTorch sees fit."""

    capturable: bool = False
    """Safe to record in a CUDA graph."""

    differentiable: bool = False
    """Let gradients flow through the step."""

    fused: bool | None = None
    """Update all parameters in one kernel. Default none: as PyTorch sees fit."""


class TorchAdamWParams(PyTorchAdam):
    """`Adam` and `AdamW` with `torch_adam`: `torch.optim.AdamW`."""

    weight_decay: OrAuto[NonNegativeFloat] = 0.01
    torch_adam: bool = False
    """Use PyTorch's class."""

    adam_w_mode: Annotated[bool, Acts(when=DECOUPLED_ANYWAY)] = True
    """Take `torch.optim.AdamW`. Ignored with type `AdamW`, which always does."""

    fp32_optimizer_states: bool | None = None
    """Without effect with PyTorch's class."""


class TorchAdamParams(TorchAdamWParams):
    """`Adam` with `torch_adam` and without `adam_w_mode`: `torch.optim.Adam`."""

    weight_decay: OrAuto[NonNegativeFloat] = 0.0
    decoupled_weight_decay: bool = False
    """Decouple weight decay from the gradient."""


class AdagradParams(Decayed):
    """`torch.optim.Adagrad`, or DeepSpeed's CPU Adagrad under offload."""

    lr: OrAuto[NonNegativeFloat] = 1e-2
    eps: OrAuto[NonNegativeFloat] = 1e-10
    """Added to the denominator. "auto": the Trainer's `adam_epsilon`."""

    lr_decay: Annotated[NonNegativeFloat, Acts(when=NOT_OFFLOADED)] = 0.0
    """How fast the learning rate falls. Refused under offload."""

    initial_accumulator_value: Annotated[NonNegativeFloat, Acts(when=NOT_OFFLOADED)] = 0.0
    """Start of the sums of squares. Refused under offload."""

    foreach: Annotated[bool | None, Acts(when=NOT_OFFLOADED)] = None
    """Update all parameters with one call per operation. Refused under offload. Default none: as PyTorch sees
    fit."""

    maximize: Annotated[bool, Acts(when=NOT_OFFLOADED)] = False
    """Climb rather than descend. Refused under offload."""

    differentiable: Annotated[bool, Acts(when=NOT_OFFLOADED)] = False
    """Let gradients flow through the step. Refused under offload."""

    fused: Annotated[bool | None, Acts(when=NOT_OFFLOADED)] = None
    """Update all parameters in one kernel. Refused under offload. Default none: as PyTorch sees fit."""

    amsgrad: Annotated[bool, Acts(when=OFFLOADED)] = False
    """Without effect; refused unless offloaded."""

    fp32_optimizer_states: Annotated[bool, Acts(when=OFFLOADED)] = True
    """Keep the sums in fp32. Refused unless offloaded."""


class LambParams(AdamLike):
    """DeepSpeed's FusedLamb."""

    bias_correction: bool = True
    """Correct the averages of the first steps."""

    eps_inside_sqrt: bool = False
    """Add `eps` before the square root is taken."""

    max_coeff: NonNegativeFloat = 10.0
    """Upper bound of a layer's trust ratio."""

    min_coeff: NonNegativeFloat = 0.01
    """Lower bound of a layer's trust ratio."""

    amsgrad: Literal[False] = False
    """Only false is supported."""


class LionParams(Decayed):
    """DeepSpeed's FusedLion, or its CPU Lion under offload."""

    betas: OrAuto[Betas] = Field(default=[0.9, 0.999])
    """Share of the past in the direction of the step, and in the average. "auto": the Trainer's `adam_beta1`
    and `adam_beta2`."""

    set_grad_none: Annotated[bool, Acts(when=NOT_OFFLOADED)] = True
    """Let `zero_grad` drop gradients rather than fill them with zeros. Refused under offload."""

    fp32_optimizer_states: Annotated[bool, Acts(when=OFFLOADED)] = True
    """Keep the average in fp32. Refused unless offloaded."""


class MuonParams(OptimizerParams):
    """Muon for matrices, Adam for all else. Keys of other names are ignored."""

    read_by: ClassVar[Reader] = "lookup"

    lr: Annotated[OrAuto[NonNegativeFloat] | None, NOT_NULL] = None
    """Learning rate of both halves. Default: 0.02 for Muon, 3e-4 for Adam."""

    muon_lr: Annotated[NonNegativeFloat | None, NOT_NULL, Acts(since="0.18.3")] = None
    """Learning rate of Muon's half. Default: `lr`."""

    adam_lr: Annotated[NonNegativeFloat | None, NOT_NULL, Acts(since="0.18.3")] = None
    """Learning rate of Adam's half. Default: `lr`."""

    weight_decay: OrAuto[NonNegativeFloat] = 0.0
    """Share of each weight that is taken off per step, times the learning rate. "auto": the Trainer's
    `weight_decay`, or accelerate's `DummyOptim`."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Of Muon's half: share of the past in the average of the gradient."""

    ns_method: Annotated[Literal["gram", "standard"], Acts(since="0.19.0")] = "gram"
    """Form of the Newton-Schulz iteration."""

    per_head_muon: Annotated[bool, Acts(since="0.19.8")] = False
    """Orthogonalise attention projections head by head."""

    betas: OrAuto[Betas] = Field(default=[0.9, 0.95])
    """Of Adam's half: share of the past in the averages of the gradient and of its square."""

    eps: OrAuto[NonNegativeFloat] = 1e-10
    """Of Adam's half: added to the denominator."""

    torch_adam: bool = False
    """Use PyTorch's Adam for Adam's half."""

    adam_w_mode: Annotated[bool, Acts(when=DECOUPLED_ANYWAY)] = True
    """Decouple weight decay from the gradient in Adam's half."""

    fp32_optimizer_states: Annotated[bool | None, Acts(when=OFFLOADED)] = None
    """Keep the averages of Adam's half in fp32. Default none: true."""

    foreach: bool | None = None
    """Of PyTorch's Adam: update all parameters with one call per operation. Default none: as PyTorch sees
    fit."""


class MuAdamParams(PyTorchAdam):
    """`MuAdam` and `MuAdamW` of the library mup, over PyTorch's Adam."""

    lr: OrAuto[NonNegativeFloat]
    decoupled_wd: bool = False
    """Do not scale weight decay with the width. Of mup 1.0.0."""


class PyTorchSgd(Decayed):
    """What PyTorch's SGD and mup's have in common."""

    momentum: NonNegativeFloat = 0.0
    """Share of the past steps that is kept."""

    dampening: float = 0.0
    """Share of the gradient that is left out of the momentum."""

    nesterov: bool = False
    """Look ahead along the momentum; needs one, and no `dampening`."""

    maximize: bool = False
    """Climb rather than descend."""

    foreach: bool | None = None
    """Update all parameters with one call per operation. Default none: as PyTorch sees fit."""

    differentiable: bool = False
    """Let gradients flow through the step."""

    fused: bool | None = None
    """Update all parameters in one kernel. Default none: as PyTorch sees fit."""


class MuSgdParams(PyTorchSgd):
    """`MuSGD` of the library mup, over PyTorch's SGD."""

    lr: OrAuto[NonNegativeFloat]
    decoupled_wd: bool = False
    """Do not scale weight decay with the width. Of mup 1.0.0."""


DEEPSPEED_PARAMS: Mapping[str, type[OptimizerParams]] = {
    "adam": AdamParams,
    "adamw": AdamParams,
    "adagrad": AdagradParams,
    "lamb": LambParams,
    "lion": LionParams,
    "muon": MuonParams,
    "muadam": MuAdamParams,
    "muadamw": MuAdamParams,
    "musgd": MuSgdParams,
}
"""Lower-case `type` -> its arguments; with `torch_adam`, Adam and AdamW take other ones."""


@cache
def offload_only(params: type[OptimizerParams], *, offloaded: bool) -> frozenset[str]:
    """The keys that the constructor takes only if the optimizer is offloaded, or only if it is not."""
    when = OFFLOADED if offloaded else NOT_OFFLOADED
    return frozenset(
        name
        for name, field in params.model_fields.items()
        if any(isinstance(item, Acts) and item.when == when for item in field.metadata)
    )
