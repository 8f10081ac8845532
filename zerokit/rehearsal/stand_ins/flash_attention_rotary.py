"""flash_attn.layers.rotary: rotary embeddings, whose Triton kernel writes in place or into a copy.

Tensors are allocated as in the original; functions that rotate in place return their argument.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
]


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, inplace: bool, turned: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.inplace, ctx.turned = inplace, turned
        take_time("rotary", *_part(x, turned))
        if inplace:
            ctx.mark_dirty(x)
            return x
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        take_time("rotary", *_part(grad, ctx.turned))
        return grad if ctx.inplace else torch.empty_like(grad), None, None, None, None


def _part(x: Tensor, turned: int) -> tuple[Tensor, Tensor]:
    """The tensors that are read and written: x itself, or the first `turned` of its packed parts."""
    part = x if x.dim() < 5 else x[:, :, :turned]
    return part, part


@with_parameters("x cos sin interleaved=False inplace=False seqlen_offsets=0 cu_seqlens=None max_seqlen=None")
def apply_rotary_emb(given: Given) -> Any:
    """x [batch, sequence, heads, head size] rotated by the angles of the given cosines and sines."""
    tensors = (given[name] for name in ("x", "cos", "sin"))
    return _Rotary.apply(*tensors, given["inplace"], 1)  # type: ignore[no-untyped-call]


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(qkv: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    """qkv [batch, sequence, 3, heads, head size]; queries and keys are rotated in place."""
    turned: Tensor = _Rotary.apply(qkv, cos, sin, True, 2)  # type: ignore[no-untyped-call]
    return turned


def apply_rotary_emb_kv_(kv: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    """kv [batch, sequence, 2, heads, head size]; the keys are rotated in place."""
    turned: Tensor = _Rotary.apply(kv, cos, sin, True, 1)  # type: ignore[no-untyped-call]
    return turned


class RotaryEmbedding(torch.nn.Module):
    """Turns queries and keys in place, with a table of angles for the longest sequence so far."""

    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        frequencies = base ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self._length = 0
        self._table: tuple[Tensor, Tensor] | None = None

    def _angles(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = self._table
        if table is None or length > self._length or table[0].dtype != like.dtype:
            places = torch.arange(length, device=like.device, dtype=torch.float32)
            angles = torch.outer(places, self.inv_freq.to(like.device, torch.float32))
            table = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
            self._table, self._length = table, length
        return table

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """qkv [batch, sequence, 3, heads, head size]; or q [batch, sequence, heads, head size] and kv."""
        length = max_seqlen if max_seqlen is not None else qkv.size(1)
        if isinstance(seqlen_offset, int):
            length += seqlen_offset
        cos, sin = self._angles(length, qkv)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin)
        return apply_rotary_emb(qkv, cos, sin, inplace=True), apply_rotary_emb_kv_(kv, cos, sin)
