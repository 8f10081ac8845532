"""fused_layer_norm_cuda of Apex (csrc/layer_norm_cuda.cpp): norms over the last dimensions, of any dtype.

Statistics are float32, or of the input's dtype if that is wider. None of the functions names its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

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


def forward(input: Tensor, shape: Sequence[int], eps: float, /) -> list[Tensor]:
    """The norm, means and inverse deviations."""
    return _forward(input, shape, 2, input.dtype)


def forward_affine(
    input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float, /
) -> list[Tensor]:
    """As :func:`forward`, with weight and bias of the input's dtype."""
    return _forward(input, shape, 2, input.dtype, weight, bias)


def forward_affine_mixed_dtypes(
    input: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float, /
) -> list[Tensor]:
    """As :func:`forward_affine`, with the norm of the weight's dtype."""
    return _forward(input, shape, 2, weight.dtype, weight, bias)


def rms_forward(input: Tensor, shape: Sequence[int], eps: float, /) -> list[Tensor]:
    """The norm and inverse roots of mean squares."""
    return _forward(input, shape, 1, input.dtype)


def rms_forward_affine(input: Tensor, shape: Sequence[int], weight: Tensor, eps: float, /) -> list[Tensor]:
    """As :func:`rms_forward`, with a weight of the input's dtype."""
    return _forward(input, shape, 1, input.dtype, weight)


def rms_forward_affine_mixed_dtypes(
    input: Tensor, shape: Sequence[int], weight: Tensor, eps: float, /
) -> list[Tensor]:
    """As :func:`rms_forward_affine`, with the norm of the weight's dtype."""
    return _forward(input, shape, 1, weight.dtype, weight)


def backward(
    grad: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    kept: Tensor,
    shape: Sequence[int],
    eps: float,
    memory_efficient: bool,
    /,
) -> Tensor:
    """The input's gradient; `kept` is the input, or with `memory_efficient` the output."""
    return _backward(grad, kept)[0]


def backward_affine(
    grad: Tensor,
    mean: Tensor | None,
    inverse: Tensor,
    kept: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    memory_efficient: bool,
    /,
) -> list[Tensor]:
    """Gradients of the input, the weight and the bias."""
    return _backward(grad, kept, weight, bias)


def rms_backward(
    grad: Tensor,
    inverse: Tensor,
    kept: Tensor,
    shape: Sequence[int],
    eps: float,
    memory_efficient: bool,
    /,
) -> Tensor:
    """As :func:`backward`."""
    return _backward(grad, kept)[0]


def rms_backward_affine(
    grad: Tensor,
    inverse: Tensor,
    kept: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    eps: float,
    memory_efficient: bool,
    /,
) -> list[Tensor]:
    """Gradients of the input and the weight."""
    return _backward(grad, kept, weight)


def _forward(
    x: Tensor, shape: Sequence[int], statistics: int, dtype: torch.dtype, *weights: Tensor
) -> list[Tensor]:
    _check(x, *weights)
    if tuple(x.shape[-len(shape) :]) != tuple(shape):
        raise RuntimeError(f"expected input with shape [*, {', '.join(map(str, shape))}], got {x.shape}")
    out = torch.empty_like(x, dtype=dtype)
    rows = x.numel() // math.prod(shape)
    kept = [x.new_empty(rows, dtype=_accumulated(x.dtype)) for _ in range(statistics)]
    take_time("cuApplyLayerNorm", x, x, out, *weights)  # goes over each row twice
    return [out, *kept]


def _backward(grad: Tensor, kept: Tensor, *weights: Tensor) -> list[Tensor]:
    _check(grad, kept, *weights)
    gradients = [torch.empty_like(one) for one in (kept, *weights)]
    if weights:
        parts = [one.new_empty((_PARTS, one.numel()), dtype=_accumulated(kept.dtype)) for one in weights]
        take_time("cuComputePartGradGammaBeta", grad, kept, parts)
        take_time("cuComputeGradGammaBeta", parts, gradients[1:])
        del parts
    take_time("cuComputeGradInput", grad, kept, grad, kept, gradients[0])
    return gradients


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _check(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError("fused_layer_norm_cuda: input must be a CUDA tensor")
        if not tensor.is_contiguous():
            raise RuntimeError("fused_layer_norm_cuda: input must be contiguous")
