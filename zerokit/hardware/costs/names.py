"""Facts in the names of operators and dtypes."""

from __future__ import annotations

import re

_VIEW_NAMES = """
view _unsafe_view reshape _reshape_alias t transpose permute expand alias detach slice select narrow
squeeze unsqueeze as_strided split split_with_sizes chunk unbind unflatten flatten view_as movedim
swapaxes mT diagonal lift lift_fresh empty empty_like empty_strided new_empty new_empty_strided resize_
set_ record_stream is_pinned is_same_size size stride numel dim sym_size sym_stride sym_numel unfold
sym_storage_offset detach_ squeeze_ unsqueeze_ t_ transpose_ as_strided_ view_as_real view_as_complex
real imag _local_scalar_dense item _nested_view_from_buffer
"""
_VIEWS = frozenset(_VIEW_NAMES.split())
"""Operators that launch nothing."""

OVERWRITING = frozenset(
    ["copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "_foreach_zero_", "_foreach_copy_"]
)
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
