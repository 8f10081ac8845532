"""apex.transformer.functional: rotary embeddings by one kernel (fused_rope.py, until 2025)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "fused_apply_rotary_pos_emb",
    "fused_apply_rotary_pos_emb_cached",
    "fused_apply_rotary_pos_emb_thd",
]


class _Rotary(torch.autograd.Function):
    """Keeps the angles alone."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, transposed: bool, *angles: Tensor) -> Tensor:
        ctx.save_for_backward(*angles)
        ctx.transposed = transposed
        return _turned(t, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _turned(grad, ctx.transposed), None, *(None for _ in ctx.saved_tensors)


def _turned(t: Tensor, transposed: bool) -> Tensor:
    """A tensor like `t` of one piece; with the memory of its first two dimensions in the other order."""
    if transposed:
        turned = t.new_empty((t.size(1), t.size(0), *t.shape[2:])).transpose(0, 1)
    else:
        turned = t.new_empty(t.shape)
    take_time("fused_rope", t, turned)
    return turned


def _apply(t: Tensor, transposed: bool, *angles: Tensor) -> Tensor:
    for tensor in (t, *angles):
        if not tensor.is_cuda:
            raise RuntimeError("fused_rotary_positional_embedding: tensors must be on CUDA")
    result: Tensor = _Rotary.apply(t, transposed, *angles)  # type: ignore[no-untyped-call]
    return result


def fused_apply_rotary_pos_emb(t: Tensor, freqs: Tensor, transpose_output_memory: bool = False) -> Tensor:
    """t [sequence, batch, heads, head size] turned by angles [sequence, 1, 1, size] in float32."""
    return _apply(t, transpose_output_memory, freqs)


def fused_apply_rotary_pos_emb_cached(
    t: Tensor, cos_: Tensor, sin_: Tensor, transpose_output_memory: bool = False
) -> Tensor:
    """As :func:`fused_apply_rotary_pos_emb`, with cosines and sines of the angles."""
    return _apply(t, transpose_output_memory, cos_, sin_)


def fused_apply_rotary_pos_emb_thd(t: Tensor, cu_seqlens: Tensor, freqs: Tensor) -> Tensor:
    """As :func:`fused_apply_rotary_pos_emb`, of packed sequences t [tokens, heads, head size]."""
    return _apply(t, False, cu_seqlens, freqs)
