"""Inputs of scaled_dot_product_attention, and the backend that torch chooses for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0")

SEEN = [
    (16, 16, False, -1, -1),
    (16, 4096, True, -1, -1),
    (4096, 16, True, -1, -1),
    (300, 300, True, 127, 0),
    (300, 200, False, 20, 30),
    (200, 300, True, 250, -1),
]
"""Queries, keys, whether causal, and flash attention's window: keys to the left and right, -1 for all."""


@dataclass(frozen=True)
class Case:
    """One call; sizes are [batch, heads, sequence, head dim]."""

    query: tuple[int, ...] = (2, 8, 256, 64)
    key: tuple[int, ...] = ()
    """As the query if not given."""
    value: tuple[int, ...] = ()
    """As the key if not given."""
    dtype: str = "bfloat16"
    mask: tuple[int, ...] = ()
    mask_gradient: bool = False
    dropout_p: float = 0.0
    causal: bool = False
    grouped: bool = False
    gradient: bool = False
    turned: bool = False
    """The head dim is not the innermost one in memory."""
    offset: int = 0
    """Elements before the tensor in its storage."""
    deterministic: bool = False
    off: str = ""
    only: str = ""


def _head(head_dim: int, **what: Any) -> Case:
    return Case((2, 8, 256, head_dim), **what)


_EVERYWHERE = len(CAPABILITIES)
_CUDNN_IF_PREFERRED = (FLASH, FLASH, CUDNN, CUDNN)
_CUDNN_ELSE_EFFICIENT = (EFFICIENT, EFFICIENT, CUDNN, CUDNN)
_FEWER = (2, 2, 256, 64)

# Expected values, one for each of CAPABILITIES, follow the can_use_*_attention functions of torch 2.13
# (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) with cuDNN 9.20.
CHOICES: dict[str, tuple[Case, tuple[int, ...]]] = {
    "bfloat16": (Case(), _CUDNN_IF_PREFERRED),
    "causal": (Case(causal=True), _CUDNN_IF_PREFERRED),
    "float16": (Case(dtype="float16"), _CUDNN_IF_PREFERRED),
    "float32": (Case(dtype="float32"), (EFFICIENT,) * _EVERYWHERE),
    "float64": (Case(dtype="float64"), (MATH,) * _EVERYWHERE),
    "mask": (Case(mask=(2, 1, 256, 256)), _CUDNN_ELSE_EFFICIENT),
    "mask with gradient": (Case(mask=(2, 1, 256, 256), mask_gradient=True), (EFFICIENT,) * _EVERYWHERE),
    "head dim 66": (_head(66), (FLASH,) * _EVERYWHERE),
    "head dim 66, mask": (_head(66, mask=(256, 256)), (MATH,) * _EVERYWHERE),
    "head dims 192 and 128": (_head(192, key=(2, 8, 256, 192), value=(2, 8, 256, 128)), _CUDNN_ELSE_EFFICIENT),
    "head dim 224, training": (_head(224, gradient=True), (FLASH, EFFICIENT, CUDNN, FLASH)),
    "head dim 256, training": (_head(256, gradient=True), (FLASH, FLASH, CUDNN, FLASH)),
    "head dim 512": (_head(512), (EFFICIENT,) * _EVERYWHERE),
    "grouped": (Case(key=_FEWER, grouped=True), _CUDNN_IF_PREFERRED),
    "grouped float32": (Case(key=_FEWER, grouped=True, dtype="float32"), (MATH,) * _EVERYWHERE),
    "fewer heads, not grouped": (Case(key=_FEWER), (MATH,) * _EVERYWHERE),
    "causal, longer keys": (Case(key=(2, 8, 512, 64), causal=True), _CUDNN_ELSE_EFFICIENT),
    "dropout of a tenth": (Case(dropout_p=0.1), (FLASH,) * _EVERYWHERE),
    "dropout of an eighth": (Case(dropout_p=0.125), _CUDNN_IF_PREFERRED),
    "one key": (Case(key=(2, 8, 1, 64)), (FLASH,) * _EVERYWHERE),
    "no keys": (Case(key=(2, 8, 0, 64)), (MATH,) * _EVERYWHERE),
    "three dimensions": (Case((8, 256, 64)), (MATH,) * _EVERYWHERE),
    "head dim not contiguous": (Case(turned=True), (MATH,) * _EVERYWHERE),
    "float32 at an odd address": (Case(dtype="float32", offset=1), (MATH,) * _EVERYWHERE),
    "deterministic": (Case(deterministic=True), (FLASH,) * _EVERYWHERE),
    "flash switched off": (Case(off="flash"), _CUDNN_ELSE_EFFICIENT),
    "cuDNN switched off": (Case(off="cudnn"), (FLASH,) * _EVERYWHERE),
    "only math": (Case(only="MATH"), (MATH,) * _EVERYWHERE),
    "only efficient": (Case(only="EFFICIENT_ATTENTION"), (EFFICIENT,) * _EVERYWHERE),
}


def choice(case: Case) -> int:
    """What torch chooses for `case` in this process."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = getattr(torch, case.dtype)
    key = case.key or case.query

    def tensor(sizes: tuple[int, ...]) -> torch.Tensor:
        memory = torch.empty(case.offset + math.prod(sizes), dtype=dtype, device="cuda")
        made = memory[case.offset :].view(sizes)
        if case.turned:
            made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.requires_grad_(case.gradient)

    mask = None
    if case.mask:
        mask = torch.empty(case.mask, dtype=dtype, device="cuda", requires_grad=case.mask_gradient)
    tensors = (tensor(case.query), tensor(key), tensor(case.value or key))
    fused = ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"]
    allowed = [SDPBackend.__members__[name] for name in ([case.only] if case.only else ["MATH", *fused])]
    if case.off:
        allowed.remove(SDPBackend.__members__[f"{case.off.upper()}_ATTENTION"])
    torch.use_deterministic_algorithms(case.deterministic)
    with sdpa_kernel(allowed):
        return int(torch._fused_sdp_choice(*tensors, mask, case.dropout_p, case.causal, enable_gqa=case.grouped))
