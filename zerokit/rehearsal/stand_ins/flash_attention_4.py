"""Functions of flash-attn-4 (flash_attn/cute/interface.py), with the allocations of its Python code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.flash_attention_calls import Call, attend
from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]

_WINDOW = (
    "softmax_scale=None causal=False window_size=(None,None) learnable_sink=None softcap=0.0 num_splits=1"
)
_MODS = "pack_gqa=None deterministic=False score_mod=None score_mod_bwd=None mask_mod=None"
_LENGTHS = (
    "cu_seqlens_q=None cu_seqlens_k=None max_seqlen_q=None max_seqlen_k=None min_seqlen_k=None "
    "seqused_q=None seqused_k=None gather_kv_indices=None page_table=None"
)
_OF_LENGTHS = "scheduler_metadata=None seqlen_k_per_split=None disable_scheduler_metadata=False"


@with_parameters(
    f"q k v qv=None gather_kv_indices=None {_WINDOW} {_MODS} aux_tensors=None aux_scalars=None "
    "block_sparse_tensors=None block_sparse_tensors_bwd=None return_lse=False"
)
def flash_attn_func(given: Given) -> Any:
    """Attention of q [batch, sequence, heads, head size] over k and v: the output and the log-sum-exp."""
    return _attend(given)


@with_parameters(
    f"q k v qv=None {_LENGTHS} {_WINDOW} {_MODS} block_sparse_tensors=None aux_tensors=None aux_scalars=None "
    f"return_lse=False {_OF_LENGTHS}"
)
def flash_attn_varlen_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, over packed sequences; `cu_seqlens_*` [sequences + 1] in int32."""
    return _attend(given)


def _attend(given: Given) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp."""
    for name in ("qv", "gather_kv_indices", "page_table", "block_sparse_tensors"):
        if given.get(name) is not None:
            raise RehearsalGap(f"'{name}' of flash-attn-4")
    q, k, v = (given[name] for name in ("q", "k", "v"))
    known = {"max_seqlen_q": q.size(0), "max_seqlen_k": k.size(0)}
    known |= {name: value for name, value in given.items() if value is not None}
    window = tuple(-1 if side is None else side for side in given["window_size"])
    call = Call.of({**known, "window_size": window, "return_softmax": True}, generation=4)
    out, lse, _ = attend(call, q, k, v)
    sink = given["learnable_sink"]
    return out if sink is None else _WithSink.apply(out, sink), lse  # type: ignore[no-untyped-call]


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
