"""flash_attn.ops.triton.layer_norm and flash_attn.losses.cross_entropy, with their allocations.

The Triton kernels write into tensors that their wrappers allocate; these are allocated here as in release
2.8.3 (flash_attn/ops/triton/layer_norm.py, `_layer_norm_fwd` and `_layer_norm_bwd_impl`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.flash_attention_layers import cross_entropy_loss
from zerokit.rehearsal.stand_ins.signatures import Given, functions_of
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["CrossEntropyLoss", "RMSNorm", "layer_norm_fn", "rms_norm_fn"]

_signed = functions_of(__file__)
_PROGRAMS_PER_SM = 8
"""Rows of partial gradients of a weight that the backward makes for each multiprocessor."""


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        dropout_p: float,
        residual_dtype: torch.dtype | None,
        has_mean: bool,
        out_dtype: torch.dtype | None,
        prenorm: bool,
    ) -> Any:
        shape, x = x.shape, x.reshape(-1, x.size(-1))  # a copy, and kept, where x is not of one piece
        rows = x.size(0)
        out = torch.empty_like(x, dtype=out_dtype or x.dtype)
        kept = x
        if residual is not None or dropout_p > 0 or residual_dtype not in (None, x.dtype):
            kept = torch.empty_like(x, dtype=residual_dtype or x.dtype)
        mean = torch.empty(rows, dtype=torch.float32, device=x.device) if has_mean else None
        deviation = torch.empty(rows, dtype=torch.float32, device=x.device)
        seeds = torch.empty(rows, dtype=torch.int64, device=x.device) if dropout_p > 0 else None
        take_time("layer_norm_fwd", x, residual, weight, bias, out, None if kept is x else kept)
        ctx.save_for_backward(kept, weight, bias, mean, deviation, seeds)
        ctx.shape, ctx.x_dtype = shape, x.dtype
        ctx.has_residual, ctx.has_dropout = residual is not None, dropout_p > 0
        return (out.view(shape), kept.view(shape)) if prenorm else out.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_of_kept: Tensor) -> Any:
        kept, weight, bias, *_ = ctx.saved_tensors
        of_x = torch.empty_like(kept, dtype=ctx.x_dtype)
        of_residual = None
        if ctx.has_residual:
            is_own = ctx.x_dtype != kept.dtype or ctx.has_dropout
            of_residual = torch.empty_like(kept) if is_own else of_x
        programs = torch.cuda.get_device_properties(kept.device).multi_processor_count * _PROGRAMS_PER_SM
        shape = (programs, kept.size(-1))
        partial = [
            None if one is None else torch.empty(shape, dtype=torch.float32, device=kept.device)
            for one in (weight, bias)
        ]
        written = [of_x, None if of_residual is of_x else of_residual, partial]
        take_time("layer_norm_bwd", grad, kept, weight, _of_kept, written)
        of_weight, of_bias = (
            None if one is None or part is None else part.sum(0).to(one.dtype)
            for one, part in zip((weight, bias), partial, strict=True)
        )
        of_x = of_x.view(ctx.shape)
        of_residual = None if of_residual is None else of_residual.view(ctx.shape)
        return of_x, of_weight, of_bias, of_residual, None, None, None, None, None


@_signed
def layer_norm_fn(given: Given) -> Any:
    """x [..., size] plus residual [..., size], normed; with `prenorm` the sum, too.

    Raises:
        RehearsalGap: two branches, scaled rows, masks given back, or results written into given tensors.
    """
    others = ("x1", "weight1", "bias1", "rowscale", "out", "residual_out")
    if given["return_dropout_mask"] or any(given[name] is not None for name in others):
        raise RehearsalGap("flash_attn's layer_norm_fn with x1, weight1, rowscale, out or dropout masks")
    residual = given["residual"]
    dtype = torch.float32 if given["residual_in_fp32"] else None
    return _Norm.apply(  # type: ignore[no-untyped-call]
        *(given[name] for name in ("x", "weight", "bias", "residual", "dropout_p")),
        dtype if residual is None else residual.dtype,
        *(not given["is_rms_norm"], given["out_dtype"], given["prenorm"]),
    )


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """:func:`layer_norm_fn` without means; in order, its arguments are the same up to `residual_in_fp32`."""
    return layer_norm_fn(x, weight, bias, *args, **{**kwargs, "is_rms_norm": True})


class RMSNorm(nn.Module):
    """A layer of :func:`rms_norm_fn`."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_weight = eps, zero_centered_weight
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0 else None
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        dropout_p = self.drop.p if self.drop is not None and self.training else 0.0
        options = {"residual": residual, "prenorm": prenorm, "residual_in_fp32": residual_in_fp32}
        return rms_norm_fn(x, self.weight, None, eps=self.eps, dropout_p=dropout_p, **options)


class CrossEntropyLoss(nn.Module):
    """A layer of :func:`cross_entropy_loss`, with logits [rows, classes] and targets [rows]."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.inplace_backward = inplace_backward

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        losses, squares = cross_entropy_loss(input, target, inplace_backward=self.inplace_backward)
        reduced = tuple(self._reduced(one, target) for one in (losses, squares))
        return reduced if self.return_z_loss else reduced[0]

    def _reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return total / (target != self.ignore_index).sum() if self.reduction == "mean" else total
