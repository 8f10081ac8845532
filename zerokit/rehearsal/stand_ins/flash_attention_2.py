"""Functions of flash_attn 2.x, with the signatures of flash_attn/flash_attn_interface.py from 2.0 to 2.8.

Functions with an underscore have one signature from 2.7 on, and before that the one of 2.0.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.flash_attention_calls import Call, attend, backward, check_devices, forward, pad_head
from zerokit.rehearsal.stand_ins.refused import refused_function
from zerokit.rehearsal.stand_ins.signatures import Given, functions_of, is_within

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

_signed = functions_of(__file__)


def _attention(name: str, tensors: str) -> Callable[..., Any]:
    """A function of tensors [batch, sequence, (3, 2,) heads, head size], or packed with cumulative lengths.

    k and v may have fewer heads: a divisor of the number of q's. Lengths are [sequences + 1] in int32.
    """

    return _signed(lambda given: attend(Call.of(given), *(given[tensor] for tensor in tensors.split())), name)


flash_attn_func = _attention("flash_attn_func", "q k v")
flash_attn_qkvpacked_func = _attention("flash_attn_qkvpacked_func", "qkv")
flash_attn_kvpacked_func = _attention("flash_attn_kvpacked_func", "q kv")
flash_attn_varlen_func = _attention("flash_attn_varlen_func", "q k v")
flash_attn_varlen_qkvpacked_func = _attention("flash_attn_varlen_qkvpacked_func", "qkv")
flash_attn_varlen_kvpacked_func = _attention("flash_attn_varlen_kvpacked_func", "q kv")


@_signed
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


def _forward(given: Given) -> tuple[Tensor, ...]:
    """Output, log-sum-exp, softmax and random state; for libraries that pass attention around a ring.

    Before 2.7: output, q, k, v, padded output, and the other three.
    """
    q, k, v = (given[name] for name in ("q", "k", "v"))
    out, *others = forward(q, k, v, Call.of(given))
    return (out, *others) if "window_size_left" in given else (out, q, k, v, out, *others)


def _backward(given: Given) -> Any:
    """Writes the gradients in place; returns the row sums, and before 2.7 the gradients before them."""
    grad_out, q, k, v, out, lse = (given[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse"))
    sums = backward(grad_out, q, k, v, out, lse, Call.of(given))
    return sums if "window_size_left" in given else (*(given[name] for name in ("dq", "dk", "dv")), sums)


_flash_attn_forward = _signed(_forward, "_flash_attn_forward")
_flash_attn_varlen_forward = _signed(_forward, "_flash_attn_varlen_forward")
_flash_attn_backward = _signed(_backward, "_flash_attn_backward")
_flash_attn_varlen_backward = _signed(_backward, "_flash_attn_varlen_backward")


class _Compiled:
    """The module of CUDA code beneath, flash_attn_2_cuda: libraries look for it when they are imported."""

    def __init__(self, since: str, until: str) -> None:
        self._since, self._until = since, until

    def of_version(self, version: str) -> _Compiled | None:
        return self if is_within(version, self._since, self._until) else None

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)
        return refused_function(f"flash_attn_2_cuda.{name}, beneath flash-attn's own functions")


flash_attn_cuda = _Compiled("", "2.7.1")
flash_attn_gpu = _Compiled("2.7.1", "")
