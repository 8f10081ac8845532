"""Functions of flash-attn-3 (hopper/flash_attn_interface.py), with the allocations of its CUDA code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zerokit.rehearsal.stand_ins.flash_attention_2 import flash_attn_with_kvcache as _with_cache
from zerokit.rehearsal.stand_ins.flash_attention_calls import ANY_WINDOW, Call, attend

__all__ = [
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


def _attend(call: Call, *tensors: Tensor) -> Any:
    """The output, or output and log-sum-exp: version 3 has no softmax to return."""
    result = attend(call, *tensors)
    return result[:2] if call.return_softmax else result


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = ANY_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [batch, sequence, heads, head size] over k and v."""
    call = Call(causal=causal, window=window_size, return_softmax=return_attn_probs, generation=3)
    return _attend(call, q, k, v)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = ANY_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """As :func:`flash_attn_func`, with qkv [batch, sequence, 3, heads, head size]."""
    call = Call(causal=causal, window=window_size, return_softmax=return_attn_probs, generation=3)
    return _attend(call, qkv)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = ANY_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """As :func:`flash_attn_func`, over packed sequences; `cu_seqlens_*` [sequences + 1] in int32."""
    call = Call(
        causal=causal,
        window=window_size,
        lengths=(cu_seqlens_q, cu_seqlens_k),
        longest=(int(max_seqlen_q), int(max_seqlen_k)),
        return_softmax=return_attn_probs,
        generation=3,
    )
    return _attend(call, q, k, v)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | int | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = ANY_WINDOW,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q over a cache, into which k and v are written in place; without gradients."""
    return _with_cache(q, k_cache, v_cache, return_softmax_lse=return_softmax_lse)
