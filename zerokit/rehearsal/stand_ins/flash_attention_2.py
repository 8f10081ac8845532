"""Functions of flash_attn 2.x, with the signatures of flash_attn/flash_attn_interface.py from 2.0 to 2.8.

Functions with an underscore have one signature from 2.7 on, and before that the one of 2.0.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.stand_ins.flash_attention_calls import (
    Call,
    attend,
    backward,
    check_devices,
    forward,
    pad_head,
)
from zerokit.rehearsal.stand_ins.signatures import Given, is_within, with_parameters

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_cuda",
    "flash_attn_func",
    "flash_attn_gpu",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_OPTIONS = (
    "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1,-1)@2.3 softcap=0.0@2.6 "
    "alibi_slopes=None@2.4 deterministic=False@2.4.1 return_attn_probs=False"
)
_PACKED = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_SCALES = "dropout_p softmax_scale causal"
_WINDOW = "window_size@2.3-2.7 window_size_left@2.7 window_size_right@2.7"
_MASK = f"{_WINDOW} softcap@2.6 alibi_slopes@2.4"
_GRADIENTS = "dout q k v out softmax_lse dq dk dv"


@with_parameters(f"q k v {_OPTIONS}")
def flash_attn_func(given: Given) -> Any:
    """Attention of q over k and v, which may have fewer heads: a divisor of the number of q's."""
    return attend(Call.of(given), given["q"], given["k"], given["v"])


@with_parameters(f"qkv {_OPTIONS}")
def flash_attn_qkvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, with qkv [batch, sequence, 3, heads, head size]."""
    return attend(Call.of(given), given["qkv"])


@with_parameters(f"q kv {_OPTIONS}")
def flash_attn_kvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, with kv [batch, sequence, 2, heads, head size]."""
    return attend(Call.of(given), given["q"], given["kv"])


@with_parameters(f"q k v {_PACKED} {_OPTIONS} block_table=None@2.5.7")
def flash_attn_varlen_func(given: Given) -> Any:
    """As :func:`flash_attn_func`, over packed sequences; `cu_seqlens_*` [sequences + 1] in int32."""
    return attend(Call.of(given), given["q"], given["k"], given["v"])


@with_parameters(f"qkv cu_seqlens max_seqlen {_OPTIONS}")
def flash_attn_varlen_qkvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_varlen_func`, with qkv [tokens, 3, heads, head size]."""
    return attend(Call.of(given), given["qkv"])


@with_parameters(f"q kv {_PACKED} {_OPTIONS}")
def flash_attn_varlen_kvpacked_func(given: Given) -> Any:
    """As :func:`flash_attn_varlen_func`, with kv [tokens, 2, heads, head size]."""
    return attend(Call.of(given), given["q"], given["kv"])


@with_parameters(
    "q k_cache v_cache k=None v=None rotary_cos=None@2.2.3 rotary_sin=None@2.2.3 cache_seqlens=None "
    "cache_batch_idx=None@2.3.1 cache_leftpad=None@2.6.1 block_table=None@2.5 softmax_scale=None "
    "causal=False window_size=(-1,-1)@2.3 softcap=0.0@2.6 rotary_interleaved=True@2.2.3 "
    "alibi_slopes=None@2.4 num_splits=0 return_softmax_lse=False@2.6",
    since="2.2",
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
    return (out, lse) if given.get("return_softmax_lse") else out


@with_parameters(f"q k v {_SCALES} {_MASK} return_softmax")
def _flash_attn_forward(given: Given) -> tuple[Tensor, ...]:
    """Output, log-sum-exp, softmax and random state; for libraries that pass attention around a ring.

    Before 2.7: output, q, k, v, padded output, and the other three.
    """
    return _forward(given)


@with_parameters(
    f"q k v {_PACKED} {_SCALES} window_size@2.3-2.6.2 window_size=(-1,-1)@2.6.2-2.7 window_size_left=-1@2.7 "
    "window_size_right=-1@2.7 softcap@2.6-2.6.2 softcap=0.0@2.6.2 alibi_slopes@2.4-2.6.2 "
    "alibi_slopes=None@2.6.2 return_softmax@-2.6.2 return_softmax=False@2.6.2 block_table=None@2.5.7 "
    "leftpad_k=None@2.6.1 seqused_k=None@2.6.2 zero_tensors=False@2.7.3"
)
def _flash_attn_varlen_forward(given: Given) -> tuple[Tensor, ...]:
    """As :func:`_flash_attn_forward`, over packed sequences."""
    return _forward(given)


@with_parameters(f"{_GRADIENTS} {_SCALES} {_MASK} deterministic@2.4.1 rng_state=None")
def _flash_attn_backward(given: Given) -> Any:
    """Writes the gradients in place; returns the row sums, and before 2.7 the gradients before them."""
    return _backward(given)


@with_parameters(
    f"{_GRADIENTS} {_PACKED} {_SCALES} {_MASK} deterministic@2.4.1 rng_state=None zero_tensors=False@2.7.3"
)
def _flash_attn_varlen_backward(given: Given) -> Any:
    """As :func:`_flash_attn_backward`, over packed sequences."""
    return _backward(given)


def _forward(given: Given) -> tuple[Tensor, ...]:
    q, k, v = (given[name] for name in ("q", "k", "v"))
    out, *others = forward(q, k, v, Call.of(given))
    return (out, *others) if "window_size_left" in given else (out, q, k, v, out, *others)


def _backward(given: Given) -> Any:
    grad_out, q, k, v, out, lse = (given[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse"))
    sums = backward(grad_out, q, k, v, out, lse, Call.of(given))
    return sums if "window_size_left" in given else (*(given[name] for name in ("dq", "dk", "dv")), sums)


class _Compiled:
    """The module of CUDA code beneath, flash_attn_2_cuda: libraries look for it when they are imported."""

    def __init__(self, since: str, until: str) -> None:
        self._since, self._until = since, until

    def of_version(self, version: str) -> _Compiled | None:
        return self if is_within(version, self._since, self._until) else None

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise RehearsalGap(f"flash_attn_2_cuda.{name}, beneath flash-attn's own functions")

        return refuse


flash_attn_cuda = _Compiled("", "2.7.1")
flash_attn_gpu = _Compiled("2.7.1", "")
