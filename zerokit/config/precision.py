"""The sections that choose number formats: `bf16`, `fp16`, `torch_autocast` and `data_types`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from zerokit.config.base import NOT_NULL, Int, NonNegativeFloat, OrAuto, Positive, Reader, Section, whole
from zerokit.config.conditions import IMMEDIATE_UPDATE, LOSS_SCALING, OVERFLOW_CHECK, Acts

DtypeName = Literal[
    "fp32",
    "float32",
    "float",
    "torch.float32",
    "fp16",
    "float16",
    "half",
    "torch.float16",
    "bf16",
    "bfloat16",
    "torch.bfloat16",
    "int8",
    "torch.int8",
]
"""The spellings that DeepSpeed's `DtypeEnum` knows (`deepspeed/runtime/config.py`)."""


class BF16(Section):
    """Training in bfloat16 with fp32 master weights, in every stage."""

    read_by: ClassVar[Reader] = "model"

    enabled: OrAuto[bool] = False
    """Train in bfloat16. Default false. "auto": the Trainer's `bf16`, or accelerate's `mixed_precision`."""

    immediate_grad_update: Annotated[bool, Acts(1, when=IMMEDIATE_UPDATE)] = False
    """Add each gradient to its fp32 copy as soon as it is made. Default false."""

    check_grad_overflow: Annotated[bool, Acts(1, 2, when=OVERFLOW_CHECK, since="0.17.1")] = True
    """Skip the step if a gradient is infinite or NaN. Default true."""

    bf16_master_weights_and_grads: Annotated[bool, Acts(1, 2, 3, since="0.18.3")] = False
    """Keep master weights and gradients in bfloat16 rather than fp32. Default false."""

    bf16_optimizer_states: Annotated[bool, Acts(1, 2, 3, since="0.18.3")] = False
    """Keep the optimizer's states in bfloat16; needs `bf16_master_weights_and_grads`. Default false."""


class FP16(Section):
    """Training in float16 with loss scaling and fp32 master weights, in every stage."""

    read_by: ClassVar[Reader] = "model"

    enabled: OrAuto[bool] = False
    """Train in float16. Default false. "auto": the Trainer's `fp16`, or accelerate's `mixed_precision`."""

    auto_cast: bool = False
    """Cast floating-point inputs of the model to float16. Default false."""

    loss_scale: Annotated[NonNegativeFloat, Acts(when=LOSS_SCALING)] = 0
    """Factor on the loss; 0 adapts it as training goes. Default 0."""

    initial_scale_power: Annotated[
        int, Field(ge=0, le=127), BeforeValidator(whole), Acts(when=LOSS_SCALING)
    ] = 16
    """The adaptive scale starts at 2 to this power; 2^128 no longer fits fp32. Default 16."""

    loss_scale_window: Annotated[Int, Acts(when=LOSS_SCALING)] = 1000
    """Steps without overflow after which the adaptive scale doubles. Default 1000."""

    hysteresis: Annotated[Positive, Acts(when=LOSS_SCALING)] = 2
    """Overflows in a row after which the adaptive scale halves. Default 2."""

    consecutive_hysteresis: Annotated[bool, Acts(when=LOSS_SCALING)] = False
    """Start the count of `hysteresis` anew after each step without overflow. Default false."""

    min_loss_scale: Annotated[Int, Acts(when=LOSS_SCALING)] = 1
    """The adaptive scale never falls below this. A whole number: DeepSpeed refuses fractions. Default 1."""

    fp16_master_weights_and_grads: Annotated[bool, Acts(1, 2, 3)] = False
    """Keep master weights and gradients in float16; works with DeepSpeed's CPU Adam only. Default false."""


class TorchAutocast(Section):
    """`torch.autocast` around the forward pass, as an alternative to `bf16` and `fp16`, in every stage."""

    enabled: bool = False
    """Run the forward pass under autocast. Default false."""

    dtype: Annotated[DtypeName | None, NOT_NULL] = None
    """Number format of autocast. Default none, which leaves the choice to PyTorch."""

    lower_precision_safe_modules: Annotated[list[str] | None, NOT_NULL] = None
    """Full class names of modules whose gradients may be communicated in `dtype`. Default: DeepSpeed's
    own list."""


class DataTypes(Section):
    """Number formats of single tensors, in every stage."""

    grad_accum_dtype: DtypeName | None = None
    """Format in which gradients are accumulated. Default none: that of the model."""

    param_dtype: Annotated[DtypeName | None, Acts(since="0.19.2")] = None
    """Format of the parameters; must agree with `bf16` or `fp16`. Default none: theirs."""

    buffer_dtype: Annotated[DtypeName | None, Acts(since="0.19.2")] = None
    """Format of the model's buffers. Default none: that in which they were loaded."""

    keep_in_fp32_modules: Annotated[OrAuto[list[str]], Acts(since="0.19.8")] = "auto"
    """Name patterns of buffers that stay in fp32. Default "auto": DeepSpeed reads the model's own list."""
