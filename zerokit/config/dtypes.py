"""Names of number formats."""

from collections.abc import Mapping
from typing import Any

from zerokit.choices import Precision
from zerokit.tables import table_of

DTYPES: Mapping[str, str] = table_of(__file__)
"""The spellings that DeepSpeed's `DtypeEnum` knows (`deepspeed/runtime/config.py`) -> the shortest."""

FP32_NAMES = tuple(name for name, meant in DTYPES.items() if meant == "fp32")

TORCH_NAMES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def written_precision(data: Mapping[str, Any]) -> Precision | None:
    """The precision that a ds_config sets; None if it is open."""
    enabled = {name: data[name].get("enabled") for name in ("bf16", "fp16") if isinstance(data.get(name), dict)}
    if enabled.get("bf16") is True:
        return "bf16"
    if enabled.get("fp16") is True:
        return "fp16"
    return "fp32" if enabled and "auto" not in enabled.values() else None
