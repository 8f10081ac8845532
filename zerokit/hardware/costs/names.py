"""Facts in the names of operators and dtypes."""

from __future__ import annotations

import re

from zerokit.tables import table_of

_TABLE = table_of(__file__)
_VIEWS = frozenset[str](_TABLE["views"])
"""Operators that launch nothing."""

OVERWRITING = frozenset[str](_TABLE["overwriting"])
"""In-place operators that do not read what they write."""


def is_view(operator: str) -> bool:
    """Whether an operator launches nothing and moves no bytes."""
    return short_name(operator) in _VIEWS


def reads_what_it_writes(operator: str) -> bool:
    """Whether an operator updates its first tensor in place from its old values."""
    name = short_name(operator)
    return name.endswith("_") and not name.endswith("__") and name not in OVERWRITING


def short_name(operator: str) -> str:
    """`mm` of "aten::mm.out" and of "aten.mm.default"."""
    words = operator.replace("::", ".").split(".")
    return words[1 if len(words) > 1 else 0]


def dtype_name(dtype: str) -> str:
    """`bfloat16` of "torch.bfloat16"."""
    return dtype.rpartition(".")[2].lower()


def element_bytes(dtype: str) -> int:
    """Bytes of a dtype, from the bits in its name: 2 for "torch.bfloat16", 1 for "bool"."""
    bits = re.search(r"\d+", dtype_name(dtype))
    return max(int(bits[0]) // 8, 1) if bits else 1
