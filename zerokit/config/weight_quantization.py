"""The section `weight_quantization`: quantised weights for inference."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from zerokit.config.base import NOT_NULL, NonNegative, Positive, Reader, Section, Sub
from zerokit.config.conditions import NOT_READ, Acts


class QuantizedModules(Section):
    """How weights are quantised. Read by `deepspeed/inference/quantization`, which needs each key."""

    num_bits: Annotated[Literal[4, 8] | None, NOT_NULL] = None
    """Bits per weight. Needed."""

    group_size: Annotated[Positive | None, NOT_NULL] = None
    """Weights that share one scale. Needed."""

    group_dim: Annotated[NonNegative | None, NOT_NULL] = None
    """Dimension along which groups are taken. Needed."""

    symmetric: Annotated[Literal[False] | None, NOT_NULL] = None
    """Only false, with a zero point of its own for each group, is supported. Needed."""


class WeightQuantization(Section):
    """Quantised weights for inference with ZeRO-Inference."""

    read_by: ClassVar[Reader] = "model"

    quantized_initialization: Annotated[Sub[QuantizedModules] | None, NOT_NULL, Acts(3)] = None
    """Quantise linear and embedding weights while the model is built under `deepspeed.zero.Init`. Default
    none."""

    post_init_quant: dict[str, Sub[QuantizedModules]] = Field(default_factory=dict)
    """Part of a module's name -> how it is quantised once the model is built. Default none."""

    enabled: Annotated[bool, NOT_READ] = True
    """Quantise. Default true."""

    num_bits: Annotated[Positive, NOT_READ] = 8
    """Bits. Default 8."""

    q_type: Annotated[Literal["symmetric", "asymmetric"], NOT_READ] = "symmetric"
    """Zero point. Default symmetric."""

    q_groups: Annotated[Positive, NOT_READ] = 1
    """Groups. Default 1."""
