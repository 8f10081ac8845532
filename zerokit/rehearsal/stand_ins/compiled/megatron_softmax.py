"""The softmaxes that Megatron compiles while it runs, by the names of their extensions.

Scores are [batches, heads, queries, keys], or [batches, queries, keys] where later keys are masked, in half
precision (megatron/fused_kernels).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.arithmetic import stand_in_module
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["EXTENSIONS"]

_THREADS = 128
_WARP = 32


def _forward(scores: Tensor, *_mask_and_scale: Any) -> Tensor:
    """The probabilities, which the callers keep for the backward."""
    _check(scores)
    probabilities = scores.new_empty(scores.shape)
    take_time("scaled_masked_softmax_forward", scores, probabilities)
    return probabilities


def _backward(grad: Tensor, probabilities: Tensor, _scale: Any) -> Tensor:
    """The scores' gradients, in the place of the probabilities'."""
    _check(grad, probabilities)
    grad = grad.contiguous()
    take_time("scaled_masked_softmax_backward", grad, probabilities, grad)
    return grad


def _backward_of_mask(grad: Tensor, probabilities: Tensor, _scale: Any) -> Tensor:
    """The scores' gradients, in a tensor of their own."""
    _check(grad, probabilities)
    grad = grad.contiguous()
    gradients = grad.new_empty(grad.shape)
    take_time("scaled_masked_softmax_backward", grad, probabilities, gradients)
    return gradients


def _get_batch_per_block(queries: int, keys: int, batches: int, heads: int) -> int:
    """Rows of keys that a block of the kernel works on."""
    elements = 1 << max(keys - 1, 0).bit_length()
    return _THREADS // min(elements, _WARP) * (2 if elements <= _THREADS else 1)


def _check(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_cuda or tensor.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("Only fp16 and bf16 are supported, on CUDA")


EXTENSIONS = {
    module.__name__: module
    for module in (
        stand_in_module("scaled_upper_triang_masked_softmax_cuda", forward=_forward, backward=_backward),
        stand_in_module(
            "scaled_masked_softmax_cuda",
            forward=_forward,
            backward=_backward_of_mask,
            get_batch_per_block=_get_batch_per_block,
        ),
        stand_in_module("scaled_softmax_cuda", forward=_forward, backward=_backward),
    )
}
