"""Functions of flash-attn-3 (hopper/flash_attn_interface.py), with the allocations of its CUDA code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerokit.rehearsal.stand_ins.flash_attention_2 import flash_attn_with_kvcache as _with_cache
from zerokit.rehearsal.stand_ins.flash_attention_calls import Call, attend
from zerokit.rehearsal.stand_ins.signatures import Given, functions_of

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_signed = functions_of(__file__)


def _attention(name: str, tensors: str) -> Callable[..., Any]:
    """A function of tensors as in version 2: gives the output, or output and log-sum-exp, as there is no softmax."""

    def attention(given: Given) -> Any:
        result = attend(Call.of(given, generation=3), *(given[tensor] for tensor in tensors.split()))
        return result[:2] if given["return_attn_probs"] else result

    return _signed(attention, name)


flash_attn_func = _attention("flash_attn_func", "q k v")
flash_attn_qkvpacked_func = _attention("flash_attn_qkvpacked_func", "qkv")
flash_attn_varlen_func = _attention("flash_attn_varlen_func", "q k v")


@_signed
def flash_attn_with_kvcache(given: Given) -> Any:
    """Attention of q over a cache, into which k and v are written in place; without gradients."""
    return _with_cache(given["q"], given["k_cache"], given["v_cache"], return_softmax_lse=given["return_softmax_lse"])
