"""Names of number formats."""

from __future__ import annotations

from collections.abc import Mapping

DTYPES: Mapping[str, str] = {
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "torch.float32": "fp32",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "torch.float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "int8": "int8",
    "torch.int8": "int8",
}
"""The spellings that DeepSpeed's `DtypeEnum` knows (`deepspeed/runtime/config.py`) -> the shortest."""

FP32_NAMES = tuple(name for name, meant in DTYPES.items() if meant == "fp32")
