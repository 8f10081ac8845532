"""fused_layer_norm_cuda of Apex (csrc/layer_norm_cuda.cpp): norms over the last dimensions, of any dtype.

Forward functions return the norm and its statistics: means and inverse deviations, or for root-mean-square
norms inverse roots. They are float32, or of the input's dtype if that is wider. `kept` is the input, or with
`memory_efficient` the output. Backward functions return the gradients of the input and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.signatures import Given, positional
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "backward",
    "backward_affine",
    "forward",
    "forward_affine",
    "forward_affine_mixed_dtypes",
    "rms_backward",
    "rms_backward_affine",
    "rms_forward",
    "rms_forward_affine",
    "rms_forward_affine_mixed_dtypes",
]

_PARTS = 16
"""Rows of partial gradients of a weight."""


def _forward(
    weights: str, *, statistics: int, has_dtype_of_weight: bool = False
) -> Callable[..., list[Tensor]]:
    @positional(f"input shape {weights} eps")
    def forward(given: Given) -> list[Tensor]:
        x, shape, own = given["input"], tuple(given["shape"]), [given[name] for name in weights.split()]
        _check(x, *own)
        if tuple(x.shape[-len(shape) :]) != shape:
            raise RuntimeError(f"expected input with shape [*, {', '.join(map(str, shape))}], got {x.shape}")
        out = torch.empty_like(x, dtype=own[0].dtype if has_dtype_of_weight else x.dtype)
        rows = x.numel() // math.prod(shape)
        kept = [x.new_empty(rows, dtype=_accumulated(x.dtype)) for _ in range(statistics)]
        take_time("cuApplyLayerNorm", x, x, out, *own)  # goes over each row twice
        return [out, *kept]

    return forward


def _backward(statistics: str, weights: str) -> Callable[..., list[Tensor] | Tensor]:
    @positional(f"grad {statistics} kept shape {weights} eps memory_efficient")
    def backward(given: Given) -> list[Tensor] | Tensor:
        grad, kept, own = given["grad"], given["kept"], [given[name] for name in weights.split()]
        _check(grad, kept, *own)
        gradients = [torch.empty_like(one) for one in (kept, *own)]
        if own:
            parts = [one.new_empty((_PARTS, one.numel()), dtype=_accumulated(kept.dtype)) for one in own]
            take_time("cuComputePartGradGammaBeta", grad, kept, parts)
            take_time("cuComputeGradGammaBeta", parts, gradients[1:])
            del parts
        take_time("cuComputeGradInput", grad, kept, grad, kept, gradients[0])
        return gradients if own else gradients[0]

    return backward


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _check(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError("fused_layer_norm_cuda: input must be a CUDA tensor")
        if not tensor.is_contiguous():
            raise RuntimeError("fused_layer_norm_cuda: input must be contiguous")


forward = _forward("", statistics=2)
forward_affine = _forward("weight bias", statistics=2)
forward_affine_mixed_dtypes = _forward("weight bias", statistics=2, has_dtype_of_weight=True)
rms_forward = _forward("", statistics=1)
rms_forward_affine = _forward("weight", statistics=1)
rms_forward_affine_mixed_dtypes = _forward("weight", statistics=1, has_dtype_of_weight=True)
backward = _backward("mean inverse", "")
backward_affine = _backward("mean inverse", "weight bias")
rms_backward = _backward("inverse", "")
rms_backward_affine = _backward("inverse", "weight")
