"""Other parts of flash_attn that libraries import: bert_padding, ops.triton.cross_entropy, utils.distributed.

Gathers and scatters are real operators and collectives. The cross entropy allocates as its Triton kernel.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from zerokit.rehearsal.stand_ins.signatures import Given, functions_of
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "all_gather",
    "cross_entropy_loss",
    "index_first_axis",
    "index_put_first_axis",
    "pad_input",
    "reduce_scatter",
    "unpad_input",
]
_signed = functions_of(__file__)
# flash_attn brings einops, and scripts take it from there; zerokit does not depend on it.
with contextlib.suppress(ImportError):
    einops = import_module("einops")
    rearrange, repeat = einops.rearrange, einops.repeat
    __all__ += ["rearrange", "repeat"]


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    """The rows `indices` of `values`; for its gradient it keeps the indices alone."""
    return values.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros with `first_axis_dim` rows, and `values` at the rows `indices`, which alone are kept."""
    placed = torch.zeros((first_axis_dim, *values.shape[1:]), dtype=values.dtype, device=values.device)
    placed[indices] = values
    return placed


@_signed
def unpad_input(given: Given) -> tuple[Any, ...]:
    """The tokens that a mask [batch, sequence] keeps of hidden_states [batch, sequence, ...].

    Returns:
        tokens [kept, ...], their indices, cumulative lengths [batch + 1] in int32, the longest length, and
        from 2.7 on the number of tokens used of each sequence.
    """
    hidden_states, kept = given["hidden_states"], given["attention_mask"]
    used = (kept.sum(dim=-1, dtype=torch.int32),) if "unused_mask" in given else ()
    if given.get("unused_mask") is not None:
        kept = kept + given["unused_mask"]
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    starts = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    flat = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return index_first_axis(flat, indices), indices, starts, longest, *used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Tokens [kept, ...] put back to [batch, seqlen, ...], with zeros where there are none."""
    placed = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return placed.view(batch, seqlen, *hidden_states.shape[1:])


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace_backward: bool) -> tuple[Tensor, Tensor]:
        rows = logits.size(0)
        losses, log_sums, squares = (torch.ones(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
        ctx.save_for_backward(logits, log_sums, labels)
        ctx.inplace = inplace_backward
        take_time("cross_entropy_fwd", logits)
        ctx.mark_non_differentiable(squares)
        return losses, squares

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _squares: Tensor) -> tuple[Tensor, None, None]:
        logits = ctx.saved_tensors[0]
        take_time("cross_entropy_bwd", logits, logits)
        return logits if ctx.inplace else torch.empty_like(logits), None, None


@_signed
def cross_entropy_loss(given: Given) -> tuple[Tensor, Tensor]:
    """Losses and squared log-sum-exps [rows] in float32, of logits [rows, classes]."""
    arguments = (given["logits"], given["labels"], given["inplace_backward"])
    result: tuple[Tensor, Tensor] = _CrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _gathered(x: Tensor, group: Any) -> Tensor:
    rows = dist.get_world_size(group) * x.size(0)
    whole = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def _scattered(x: Tensor, group: Any) -> Tensor:
    rows = x.size(0) // dist.get_world_size(group)
    part = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
    return part


class _Exchange(torch.autograd.Function):
    """A collective whose gradient is another one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, run: Any, of_gradient: Any) -> Any:
        ctx.group, ctx.of_gradient = group, of_gradient
        return run(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, None, None, None]:
        return ctx.of_gradient(grad, ctx.group), None, None, None


def all_gather(x: Tensor, process_group: Any) -> Tensor:
    """The x [rows, ...] of all ranks of a group, stacked; its gradient is summed and scattered."""
    whole: Tensor = _Exchange.apply(x, process_group, _gathered, _scattered)  # type: ignore[no-untyped-call]
    return whole


def reduce_scatter(x: Tensor, process_group: Any) -> Tensor:
    """This rank's rows of the sum over a group of x [rows of all, ...]; its gradient is gathered."""
    part: Tensor = _Exchange.apply(x, process_group, _scattered, _gathered)  # type: ignore[no-untyped-call]
    return part
