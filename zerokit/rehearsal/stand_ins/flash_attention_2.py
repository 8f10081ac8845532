"""Functions of flash_attn 2.x, with the signatures of flash_attn/flash_attn_interface.py at 2.8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.flash_attention_calls import (
    Call,
    Given,
    attend,
    backward,
    check_devices,
    forward,
    pad_head,
    taking,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_OPTIONS = (
    "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 alibi_slopes=None "
    "deterministic=False return_attn_probs=False"
)
_PACKED = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_SCALES = "dropout_p softmax_scale causal"
_MASK = "window_size_left window_size_right softcap alibi_slopes"
_GRADIENTS = "dout q k v out softmax_lse dq dk dv"


@taking(f"q k v {_OPTIONS}")
def flash_attn_func(given: Given) -> Any:
    """Attention of q over k and v, whose heads may be fewer: a divisor of those of q."""
    return attend(Call.of(given), given["q"], given["k"], given["v"])


@taking(f"qkv {_OPTIONS}")
def flash_attn_qkvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, with qkv [batch, sequence, 3, heads, head size]."""
    return attend(Call.of(given), given["qkv"])


@taking(f"q kv {_OPTIONS}")
def flash_attn_kvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, with kv [batch, sequence, 2, heads, head size]."""
    return attend(Call.of(given), given["q"], given["kv"])


@taking(f"q k v {_PACKED} {_OPTIONS} block_table=None")
def flash_attn_varlen_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, over packed sequences; `cu_seqlens_*` [sequences + 1] in int32."""
    return attend(Call.of(given), given["q"], given["k"], given["v"])


@taking(f"qkv cu_seqlens max_seqlen {_OPTIONS}")
def flash_attn_varlen_qkvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_varlen_func`, with qkv [tokens, 3, heads, head size]."""
    return attend(Call.of(given), given["qkv"])


@taking(f"q kv {_PACKED} {_OPTIONS}")
def flash_attn_varlen_kvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_varlen_func`, with kv [tokens, 2, heads, head size]."""
    return attend(Call.of(given), given["q"], given["kv"])


@taking(
    "q k_cache v_cache k=None v=None rotary_cos=None rotary_sin=None cache_seqlens=None cache_batch_idx=None "
    "cache_leftpad=None block_table=None softmax_scale=None causal=False window_size=(-1,-1) softcap=0.0 "
    "rotary_interleaved=True alibi_slopes=None num_splits=0 return_softmax_lse=False"
)
def flash_attn_with_kvcache(given: Given) -> Any:
    """Attention of q over a cache, into which k and v are written in place; without gradients."""
    q = given["q"]
    check_devices((q, given["k_cache"], given["v_cache"]))
    with torch.no_grad():
        padded = pad_head(q)
        out = torch.empty_like(padded)
        lse = torch.empty((q.size(0), q.size(2), q.size(1)), dtype=torch.float32, device=q.device)
    out = out[..., : q.size(-1)]
    return (out, lse) if given["return_softmax_lse"] else out


@taking(f"q k v {_SCALES} {_MASK} return_softmax")
def _flash_attn_forward(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, softmax and random state; for libraries that pass attention around a ring."""
    return forward(given["q"], given["k"], given["v"], Call.of(given))


@taking(
    f"q k v {_PACKED} {_SCALES} window_size_left=-1 window_size_right=-1 softcap=0.0 alibi_slopes=None "
    "return_softmax=False block_table=None leftpad_k=None seqused_k=None zero_tensors=False"
)
def _flash_attn_varlen_forward(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As :func:`_flash_attn_forward`, over packed sequences."""
    return forward(given["q"], given["k"], given["v"], Call.of(given))


@taking(f"{_GRADIENTS} {_SCALES} {_MASK} deterministic rng_state=None")
def _flash_attn_backward(given: Given) -> Tensor:
    """Writes the gradients in place; returns the row sums."""
    return _backward(given)


@taking(f"{_GRADIENTS} {_PACKED} {_SCALES} {_MASK} deterministic rng_state=None zero_tensors=False")
def _flash_attn_varlen_backward(given: Given) -> Tensor:
    """As :func:`_flash_attn_backward`, over packed sequences."""
    return _backward(given)


def _backward(given: Given) -> Tensor:
    grad_out, q, k, v, out, lse = (given[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse"))
    return backward(grad_out, q, k, v, out, lse, Call.of(given))


_OF_HUB = "is_causal=False window_size_left=-1 window_size_right=-1 softcap=0.0 return_softmax=False gen=None"
"""Parameters of the functions beneath, as the Hub's kernel names and orders them."""


@taking(f"q k v out=None alibi_slopes=None p_dropout=0.0 softmax_scale=None {_OF_HUB}")
def fwd(given: Given) -> list[Tensor]:
    """As :func:`_flash_attn_forward`."""
    return _forward_of_hub(given)


@taking(
    "q k v cu_seqlens_q cu_seqlens_k out=None seqused_k=None leftpad_k=None block_table=None "
    "alibi_slopes=None max_seqlen_q=0 max_seqlen_k=0 p_dropout=0.0 softmax_scale=None zero_tensors=False "
    f"{_OF_HUB}"
)
def varlen_fwd(given: Given) -> list[Tensor]:
    """As :func:`_flash_attn_varlen_forward`."""
    return _forward_of_hub(given)


def _forward_of_hub(given: Given) -> list[Tensor]:
    if given["out"] is not None:
        raise RehearsalGap("flash attention that writes its output into a tensor of the script's")
    call = Call.of({**given, "dropout_p": given["p_dropout"], "causal": given["is_causal"]})
    return list(forward(given["q"], given["k"], given["v"], call))
