"""The section `data_types`: number formats of single tensors."""

from __future__ import annotations

from typing import Annotated, Literal

from zerokit.config.base import OrAuto, Section
from zerokit.config.conditions import Acts

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
