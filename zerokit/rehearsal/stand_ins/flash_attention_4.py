"""Functions of flash-attn-4 (flash_attn/cute/interface.py), with the allocations of its Python code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.flash_attention_calls import Call, attend
from zerokit.rehearsal.stand_ins.signatures import Given, functions_of

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]

_signed = functions_of(__file__)


def _attend(given: Given) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of q [batch, sequence, heads, head size] over k and v, or of packed sequences."""
    for name in ("qv", "gather_kv_indices", "page_table", "block_sparse_tensors"):
        if given.get(name) is not None:
            raise RehearsalGap(f"'{name}' of flash-attn-4")
    if not 8 <= torch.cuda.get_device_capability()[0] <= 12:  # its backward starts at 9.x
        raise AssertionError("Unsupported compute capability. Supported: 8.x, 9.x, 10.x, 11.x, 12.x")
    q, k, v = (given[name] for name in ("q", "k", "v"))
    known = {"max_seqlen_q": q.size(0), "max_seqlen_k": k.size(0)}
    known |= {name: value for name, value in given.items() if value is not None}
    window = tuple(-1 if side is None else side for side in given["window_size"])
    call = Call.of({**known, "window_size": window, "return_softmax": True}, generation=4)
    out, lse, _ = attend(call, q, k, v)
    sink = given["learnable_sink"]
    return out if sink is None else _WithSink.apply(out, sink), lse  # type: ignore[no-untyped-call]


flash_attn_func = _signed(_attend, "flash_attn_func")
flash_attn_varlen_func = _signed(_attend, "flash_attn_varlen_func")


class _WithSink(torch.autograd.Function):
    """Gives the sink, which takes no other memory, its gradient."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, sink: Tensor) -> Tensor:
        ctx.save_for_backward(sink)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (sink,) = ctx.saved_tensors
        return grad, torch.empty_like(sink)
