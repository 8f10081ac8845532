"""grouped_gemm.ops: its autograd functions, which keep for the backward what the originals keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.contrib.grouped_gemm import backend
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "GroupedGemm",
    "PermuteMoE_topK",
    "UnpermuteMoE_topK",
    "gmm",
    "permute",
    "sinkhorn_kernel",
    "unpermute",
]


class GroupedGemm(torch.autograd.Function):
    """Rows times the weights of their expert; keeps both."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool) -> Tensor:
        ctx.save_for_backward(a, b, batch_sizes)
        ctx.trans_b = trans_b
        return backend.gmm(a, b, batch_sizes, trans_b=trans_b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        a, b, batch_sizes = ctx.saved_tensors
        of_a = of_b = None
        if ctx.needs_input_grad[0]:
            of_a = backend.gmm(grad, b, batch_sizes, trans_b=not ctx.trans_b)
        if ctx.needs_input_grad[1]:
            left, right = (grad, a) if ctx.trans_b else (a, grad)
            of_b = backend.gmm(left, right, batch_sizes, trans_a=True)
        return of_a, of_b, None, None


def _plain(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Converted where it has to be, as the original does with a warning."""
    return tensor.to(dtype or tensor.dtype).contiguous()


def _summed(rows: Tensor, origins: Tensor, weights: Tensor | None, tokens: int) -> Tensor:
    """Rows [rows, size] summed up to so many tokens, weighted if there are weights."""
    summed = rows.new_empty((tokens, rows.size(1)))
    take_time("moe_recover_topK", rows, origins, weights, summed)
    return summed


_SORTED = 5
"""Arrays of int32 that sorting the rows takes: keys, rows, sorted rows, and a copy of keys and rows."""


@dataclass
class _Workspace:
    tensors: list[Tensor] = field(default_factory=list)
    dtype: torch.dtype | None = None
    rows: int = 0


class PermuteMoE_topK(torch.autograd.Function):  # noqa: N801 - its name
    """Tokens in the order of their experts; keeps where each came from, and one workspace for all calls."""

    @staticmethod
    def forward(
        ctx: Any, input_act: Tensor, indices: Tensor, num_out_tokens: int, max_token_num: int
    ) -> tuple[Tensor, Tensor | None]:
        own = rank_context().state(_Workspace)
        if not input_act.numel():
            return input_act, None
        if input_act.is_cpu:
            raise RuntimeError("permute takes `input_act` on a GPU, and it is on the CPU")
        if input_act.size(0) != indices.size(0):
            raise RuntimeError(f"permute takes indices of {input_act.size(0)} tokens, got {indices.size(0)}")
        indices = _plain(indices.view(-1, 1) if indices.dim() == 1 else indices, torch.int32)
        rows = max(max_token_num, input_act.size(0)) * indices.size(1)
        if own.rows < rows or own.dtype != input_act.dtype:
            own.rows, own.dtype, own.tensors = max(own.rows, rows), input_act.dtype, []
        if not own.tensors:
            own.tensors = [indices.new_empty(own.rows) for _ in range(_SORTED)]
        expanded = indices.numel()
        ordered = input_act.new_empty((num_out_tokens or expanded, input_act.size(1)))
        origins = indices.new_empty(expanded)
        take_time("moe_permute_topK", indices, own.tensors, _plain(input_act), ordered, origins)
        ctx.origins, ctx.shape = origins, indices.shape
        return ordered, origins

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _origins: Tensor | None) -> tuple[Tensor | None, ...]:
        if not grad.numel():
            return grad, None, None, None
        return _summed(grad.contiguous(), ctx.origins, None, ctx.shape[0]), None, None, None


class UnpermuteMoE_topK(torch.autograd.Function):  # noqa: N801 - its name
    """Rows summed up to the tokens that they came from; keeps rows, their origins and their weights."""

    @staticmethod
    def forward(ctx: Any, input_act: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
        if not input_act.numel():
            ctx.probs = probs
            return input_act
        if input_act.is_cpu:
            raise RuntimeError("unpermute takes `input_act` on a GPU, and it is on the CPU")
        if probs is not None and row_id_map.size(0) != probs.numel():
            raise RuntimeError(f"unpermute takes probs of {row_id_map.size(0)} rows, got {probs.numel()}")
        input_act, row_id_map = _plain(input_act), _plain(row_id_map, torch.int32)
        probs = None if probs is None else _plain(probs, torch.float32)
        summed = _summed(input_act, row_id_map, probs, (input_act if probs is None else probs).size(0))
        ctx.save_for_backward(input_act, row_id_map, probs)
        return summed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not grad.numel():
            return grad, None, ctx.probs
        input_act, row_id_map, probs = ctx.saved_tensors
        of_rows = of_probs = None
        if ctx.needs_input_grad[0]:
            grad = grad.contiguous()
            if probs is None:
                probs = grad.new_ones((grad.size(0), 1), dtype=torch.float32)
            of_rows = grad.new_empty((input_act.size(0), grad.size(1)))
            of_probs = torch.empty_like(probs, dtype=torch.float32)
            take_time("moe_recover_topK backward", grad, input_act, row_id_map, probs, of_rows, of_probs)
        return of_rows, None, of_probs if ctx.needs_input_grad[2] else None


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Rows a [tokens, k] times the weights b [experts, k, n] of their expert."""
    return GroupedGemm.apply(a, b, batch_sizes, trans_b)  # type: ignore[no-untyped-call, no-any-return]


def sinkhorn_kernel(cost: Tensor, tol: float = 0.0001) -> Tensor:
    """Costs [tokens, experts], balanced in place."""
    return backend.sinkhorn(cost, tol)


def permute(
    input_act: Tensor, indices: Tensor, num_out_tokens: int | None = None, max_token_num: int = 0
) -> tuple[Tensor, Tensor]:
    """Tokens [tokens, size] in the order of their experts, and where each came from."""
    return PermuteMoE_topK.apply(input_act, indices, num_out_tokens or 0, max_token_num)  # type: ignore[no-untyped-call, no-any-return]


def unpermute(input_act: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
    """Rows summed up to tokens, weighted by `probs` [tokens, k]."""
    return UnpermuteMoE_topK.apply(input_act, row_id_map, probs)  # type: ignore[no-untyped-call, no-any-return]
