"""Functions of flash-attn-3 (hopper/flash_attn_interface.py), with the allocations of its CUDA code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zerokit.rehearsal.stand_ins.flash_attention_2 import flash_attn_with_kvcache as _with_cache
from zerokit.rehearsal.stand_ins.flash_attention_calls import Call, attend
from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters

__all__ = [
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]

_DESCALES = "q_descale=None k_descale=None v_descale=None"
_WINDOW = "window_size=(-1,-1) attention_chunk=0 softcap=0.0"
_OPTIONS = (
    f"softmax_scale=None causal=False qv=None {_DESCALES} {_WINDOW} num_splits=1 pack_gqa=None "
    "deterministic=False sm_margin=0 return_attn_probs=False"
)


def _attend(given: Given, *tensors: Tensor) -> Any:
    """The output, or output and log-sum-exp: version 3 has no softmax to return."""
    result = attend(Call.of(given, generation=3), *tensors)
    return result[:2] if given["return_attn_probs"] else result


@with_parameters(f"q k v {_OPTIONS}")
def flash_attn_func(given: Given) -> Any:
    """Attention of q [batch, sequence, heads, head size] over k and v."""
    return _attend(given, given["q"], given["k"], given["v"])


@with_parameters(
    f"qkv softmax_scale=None causal=False {_DESCALES} {_WINDOW} deterministic=False num_heads_q=None "
    "sm_margin=0 return_attn_probs=False"
)
def flash_attn_qkvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, with qkv [batch, sequence, 3, heads, head size]."""
    return _attend(given, given["qkv"])


@with_parameters(
    "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q=None seqused_k=None " + _OPTIONS
)
def flash_attn_varlen_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, over packed sequences; `cu_seqlens_*` [sequences + 1] in int32."""
    return _attend(given, given["q"], given["k"], given["v"])


@with_parameters(
    "q k_cache v_cache k=None v=None qv=None rotary_cos=None rotary_sin=None cache_seqlens=None "
    "cache_batch_idx=None cache_leftpad=None page_table=None cu_seqlens_q=None cu_seqlens_k_new=None "
    f"max_seqlen_q=None rotary_seqlens=None {_DESCALES} softmax_scale=None causal=False {_WINDOW} "
    "rotary_interleaved=True scheduler_metadata=None num_splits=0 pack_gqa=None sm_margin=0 "
    "return_softmax_lse=False"
)
def flash_attn_with_kvcache(given: Given) -> Any:
    """Attention of q over a cache, into which k and v are written in place; without gradients."""
    return _with_cache(
        given["q"], given["k_cache"], given["v_cache"], return_softmax_lse=given["return_softmax_lse"]
    )
