"""Functions of flash_attn 2.x (flash_attn/flash_attn_interface.py), with the allocations of its CUDA code.

Head sizes that are not a multiple of 8 are padded, as there. What is not modelled: values, and the paging of a cache.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from zerokit.rehearsal.library import backend

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

_ROWS = 128
"""Rows of queries that a thread block may write at once; buffers are padded to it."""
_ANY_WINDOW = (-1, -1)


@dataclass(frozen=True)
class Call:
    """What a call asks for beyond its tensors."""

    dropout_p: float = 0.0
    causal: bool = False
    window: tuple[int, int] = _ANY_WINDOW
    deterministic: bool = False
    alibi_slopes: Tensor | None = None
    lengths: tuple[Tensor, Tensor] | None = None
    """Cumulative lengths of the query and the key sequences, int32, if they are packed."""
    longest: tuple[int, int] = (0, 0)
    return_softmax: bool = False
    generation: int = 2
    """Which flash attention: 3 has other working memory."""


def forward(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, softmax (empty unless asked for) and random state, freshly allocated."""
    cum_q, cum_k = call.lengths or (None, None)
    longest_q, longest_k = call.longest if call.lengths else (q.size(1), k.size(1))
    out, lse, state, _, softmax = torch.ops.aten._flash_attention_forward(
        *(_contiguous_rows(part) for part in (q, k, v)),
        cum_q,
        cum_k,
        longest_q,
        longest_k,
        call.dropout_p,
        call.causal,
        call.return_softmax and call.dropout_p > 0,
        window_size_left=call.window[0],
        window_size_right=call.window[1],
        alibi_slopes=call.alibi_slopes,
    )
    return out, lse, softmax, state


def backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: Call
) -> Tensor:
    """The working memory of a backward whose gradients are allocated already; returns the row sums."""
    grad_out, q, k, v, out = (_contiguous_rows(part) for part in (grad_out, q, k, v, out))
    with backend().uncounted():  # counts the FLOPs; its own gradients are not those of the package
        empty = torch.empty(0)
        cum_q, cum_k = call.lengths or (None, None)
        longest_q, longest_k = call.longest if call.lengths else (q.size(1), k.size(1))
        torch.ops.aten._flash_attention_backward(
            grad_out, q, k, v, out, lse, cum_q, cum_k, longest_q, longest_k,
            call.dropout_p, call.causal, empty, empty,
        )  # fmt: skip
    if call.generation == 3:
        return _workspace_3(q, k, v, call)
    return _workspace_2(q, k, call)


def _workspace_2(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """csrc/flash_attn/flash_api.cpp, mha_bwd and mha_varlen_bwd."""
    heads, head_size = q.shape[-2:]
    rounded = _round_up(head_size, 32 if head_size <= 128 else 64)
    sequences, rows = _rows(q, call, _ROWS)
    sums = torch.empty(heads * rows, dtype=torch.float32, device=q.device)
    copies = 1
    if call.deterministic:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        copies = math.ceil(processors / (sequences * heads))
    workspace = [torch.empty(copies * rows * heads * rounded, dtype=torch.float32, device=q.device)]
    if k.size(-2) != heads:  # a key and a value gradient for every query head
        shape = (*k.shape[:-2], heads, head_size)
        workspace += [torch.empty(shape, dtype=k.dtype, device=k.device) for _ in ("key", "value")]
    del workspace
    return sums


def _workspace_3(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """hopper/flash_api.cpp, mha_bwd, for compute capability 9.0."""
    heads, head_size = q.shape[-2:]
    key_heads = k.size(-2)
    largest = max(head_size, v.size(-1))
    rounded = next(size for size in (64, 96, 128, 192, 256) if largest <= size)
    masked = call.causal or call.window != _ANY_WINDOW
    query_rows = 128 if rounded <= 64 else 80 if rounded == 128 and not masked else 64
    key_rows = 128 if rounded <= 128 else 96 if rounded <= 192 else 80
    sequences, rows = _rows(q, call, query_rows)
    _, key_total = _rows(k, replace(call, lengths=call.lengths and call.lengths[::-1]), key_rows)
    device = q.device

    def floats(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.float32, device=device)

    sums = floats(heads * rows)
    workspace = [floats(heads * rows), floats(heads * rows * rounded)]
    if key_heads != heads:
        workspace += [floats(key_heads * key_total * rounded) for _ in ("key", "value")]
    longest_q = call.longest[0] if call.lengths else q.size(1)
    blocks = math.ceil(longest_q / query_rows)
    workspace.append(torch.empty(blocks * sequences * heads, dtype=torch.int32, device=device))
    del workspace
    return sums


def _rows(part: Tensor, call: Call, multiple: int) -> tuple[int, int]:
    """Sequences, and rows of their padded or packed buffers."""
    if call.lengths is not None:
        sequences = call.lengths[0].numel() - 1
        return sequences, _round_up(part.size(0) + sequences * multiple, multiple)
    return part.size(0), part.size(0) * _round_up(part.size(1), multiple)


class Attention(torch.autograd.Function):
    """One call. Its tensors are (q, k, v), (q, kv) or (qkv,), the packed ones along their third dimension from last."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = _unpacked(tensors)
        head_size = parts[0].size(-1)
        padded = [_pad_head(part) for part in parts]
        out, lse, softmax, _ = forward(padded[0], padded[1], padded[2], call)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*padded, out, lse)
        ctx.call, ctx.packed = call, len(tensors)
        ctx.mark_non_differentiable(lse, softmax)
        return out[..., :head_size], lse, softmax

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        gradients = _empty_gradients(q, k, v, ctx.packed)
        head_size = grad_out.size(-1)
        backward(_pad_head(grad_out), q, k, v, out, lse, ctx.call)
        for gradient in gradients:
            backend().forget_contents(gradient)
        return None, *(gradient[..., :head_size] for gradient in gradients)


def _unpacked(tensors: Sequence[Tensor]) -> list[Tensor]:
    parts: list[Tensor] = []
    for tensor in tensors:
        width = 3 if len(tensors) == 1 else 2 if len(tensors) == 2 and parts else 1
        parts += [tensor] if width == 1 else [tensor.select(-3, index) for index in range(width)]
    return parts


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, tensors: int) -> list[Tensor]:
    """As the packages make them: packed ones in one block."""
    if tensors == 3:
        return [torch.empty_like(part) for part in (q, k, v)]
    if tensors == 2:
        kv = torch.empty((*k.shape[:-2], 2, *k.shape[-2:]), dtype=k.dtype, device=k.device)
        return [torch.empty_like(q), kv]
    return [torch.empty((*q.shape[:-2], 3, *q.shape[-2:]), dtype=q.dtype, device=q.device)]


def _pad_head(part: Tensor) -> Tensor:
    return part if part.size(-1) % 8 == 0 else pad(part, [0, 8 - part.size(-1) % 8])


def _contiguous_rows(part: Tensor) -> Tensor:
    return part if part.stride(-1) == 1 else part.contiguous()


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def attend(call: Call, *tensors: Tensor) -> Any:
    """The output, or with `return_softmax` output, log-sum-exp and softmax."""
    with _checked(tensors):
        out, lse, softmax = Attention.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return (out, lse, softmax if call.dropout_p > 0 else None) if call.return_softmax else out


@contextlib.contextmanager
def _checked(tensors: Sequence[Tensor]) -> Iterator[None]:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"Input tensor must be on CUDA device, got {tensor.device}")
    yield


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:  # fmt: skip
    """Attention of q over k and v; as many key heads as query heads, or a divisor of them."""
    call = Call(dropout_p, causal, window_size, deterministic, alibi_slopes, return_softmax=return_attn_probs)
    return attend(call, q, k, v)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Any:  # fmt: skip
    """As :func:`flash_attn_func`, with qkv [batch, sequence, 3, heads, head size]."""
    call = Call(dropout_p, causal, window_size, deterministic, alibi_slopes, return_softmax=return_attn_probs)
    return attend(call, qkv)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:  # fmt: skip
    """As :func:`flash_attn_func`, with kv [batch, sequence, 2, heads, head size]."""
    call = Call(dropout_p, causal, window_size, deterministic, alibi_slopes, return_softmax=return_attn_probs)
    return attend(call, q, kv)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False,
                           window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Any:  # fmt: skip
    """As :func:`flash_attn_func`, over packed sequences that start at `cu_seqlens_*` [sequences + 1], int32."""
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    call = Call(
        dropout_p, causal, window_size, deterministic, alibi_slopes, lengths, longest, return_attn_probs
    )
    return attend(call, q, k, v)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Any:  # fmt: skip
    """As :func:`flash_attn_varlen_func`, with qkv [tokens, 3, heads, head size]."""
    lengths, longest = (cu_seqlens, cu_seqlens), (int(max_seqlen), int(max_seqlen))
    call = Call(
        dropout_p, causal, window_size, deterministic, alibi_slopes, lengths, longest, return_attn_probs
    )
    return attend(call, qkv)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Any:  # fmt: skip
    """As :func:`flash_attn_varlen_func`, with kv [tokens, 2, heads, head size]."""
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    call = Call(
        dropout_p, causal, window_size, deterministic, alibi_slopes, lengths, longest, return_attn_probs
    )
    return attend(call, q, kv)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: Tensor | int | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            block_table: Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: tuple[int, int] = _ANY_WINDOW, softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Any:  # fmt: skip
    """Attention of q over a cache, into which k and v are written in place; without gradients."""
    with _checked((q, k_cache, v_cache)), torch.no_grad():
        padded = _pad_head(q)
        out = torch.empty_like(padded)
        lse = torch.empty((q.size(0), q.size(2), q.size(1)), dtype=torch.float32, device=q.device)
        backend().forget_contents(out)
    out = out[..., : q.size(-1)]
    return (out, lse) if return_softmax_lse else out


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
                        window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None,
                        return_softmax: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, log-sum-exp, softmax and random state; for libraries that pass attention around a ring."""
    window = (window_size_left, window_size_right)
    return forward(
        q, k, v, Call(dropout_p, causal, window, alibi_slopes=alibi_slopes, return_softmax=return_softmax)
    )


def _flash_attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                         dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, dropout_p: float,
                         softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
                         softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
                         rng_state: Tensor | None = None) -> Tensor:  # fmt: skip
    """Writes the gradients in place; returns the row sums."""
    call = Call(dropout_p, causal, (window_size_left, window_size_right), deterministic, alibi_slopes)
    return backward(dout, q, k, v, out, softmax_lse, call)


def _flash_attn_varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                               max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float,
                               causal: bool, window_size_left: int = -1, window_size_right: int = -1,
                               softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
                               block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
                               seqused_k: Tensor | None = None, zero_tensors: bool = False,
                               ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As :func:`_flash_attn_forward`, over packed sequences."""
    window = (window_size_left, window_size_right)
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    return forward(
        q, k, v, Call(dropout_p, causal, window, False, alibi_slopes, lengths, longest, return_softmax)
    )


def _flash_attn_varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                                dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor,
                                cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                                softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
                                softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
                                rng_state: Tensor | None = None, zero_tensors: bool = False) -> Tensor:  # fmt: skip
    """As :func:`_flash_attn_backward`, over packed sequences."""
    window = (window_size_left, window_size_right)
    lengths, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
    return backward(
        dout,
        q,
        k,
        v,
        out,
        softmax_lse,
        Call(dropout_p, causal, window, deterministic, alibi_slopes, lengths, longest),
    )
