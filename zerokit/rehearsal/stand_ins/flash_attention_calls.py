"""Allocations of one call of FlashAttention 2, 3 or 4: its forward and its backward.

torch's own flash attention operator allocates results. Working memory of the backward follows the packages.
Shapes follow flash-attn: q [batch, sequence, heads, head size], or [tokens, heads, head size] with cumulative
lengths; softmax statistics are float32. Head sizes are padded to a multiple of 8. Nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from zerokit.hardware.costs.attention import keys_in_window, packed
from zerokit.hardware.costs.kernels import Kernel
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.stand_ins.signatures import Given
from zerokit.rehearsal.timing.rank_time import rank_time, untimed

_ROWS = 128
"""Rows of queries that a thread block may write at once; buffers are padded to it."""
_KERNELS: dict[int, Kernel] = {2: "flash_attention_2", 3: "flash_attention_3", 4: "flash_attention_4"}
ANY_WINDOW = (-1, -1)
"""Queries see all keys, to the left and to the right."""


@dataclass(frozen=True)
class Call:
    """The options of a call."""

    dropout_p: float = 0.0
    causal: bool = False
    window: tuple[int, int] = ANY_WINDOW
    deterministic: bool = False
    alibi_slopes: Tensor | None = None
    lengths: tuple[Tensor, Tensor] | None = None
    """Cumulative lengths of the query and the key sequences, int32, if they are packed."""
    longest: tuple[int, int] = (0, 0)
    return_softmax: bool = False
    generation: int = 2
    """Which FlashAttention; each has other working memory."""

    @classmethod
    def of(cls, given: Given, *, generation: int = 2) -> Call:
        """The options in the arguments of any of the packages' functions."""
        lengths, longest = None, (0, 0)
        if "cu_seqlens" in given:
            lengths, longest = (given["cu_seqlens"],) * 2, (int(given["max_seqlen"]),) * 2
        elif "cu_seqlens_q" in given:
            lengths = (given["cu_seqlens_q"], given["cu_seqlens_k"])
            longest = (int(given["max_seqlen_q"]), int(given["max_seqlen_k"]))
        window = (given.get("window_size_left", -1), given.get("window_size_right", -1))
        return cls(
            dropout_p=given.get("dropout_p", 0.0),
            causal=given["causal"],
            window=given.get("window_size", window),
            deterministic=given.get("deterministic", False),
            alibi_slopes=given.get("alibi_slopes"),
            lengths=lengths,
            longest=longest,
            return_softmax=given.get("return_attn_probs", given.get("return_softmax", False)),
            generation=generation,
        )


def forward(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, softmax (empty unless requested) and random state, freshly allocated."""
    cum_q, cum_k = call.lengths or (None, None)
    longest_q, longest_k = call.longest if call.lengths else (q.size(1), k.size(1))
    q, k, v = (_contiguous_rows(part) for part in (q, k, v))
    with untimed():  # the package's kernel may be a faster one
        out, lse, state, _, softmax = torch.ops.aten._flash_attention_forward(
            q, k, v, cum_q, cum_k, longest_q, longest_k,
            call.dropout_p, call.causal, call.return_softmax and call.dropout_p > 0,
            window_size_left=call.window[0], window_size_right=call.window[1],
            alibi_slopes=call.alibi_slopes,
        )  # fmt: skip
    _take_time(q, k, call, backward=False)
    return out, lse, softmax, state


def backward(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, call: Call) -> Tensor:
    """Allocate the working memory of a backward; its gradients exist already. Returns the row sums."""
    grad_out, q, k, v, out = (_contiguous_rows(part) for part in (grad_out, q, k, v, out))
    with backend().uncounted():  # counts the FLOPs; its gradients differ from the package's
        empty = torch.empty(0)
        cum_q, cum_k = call.lengths or (None, None)
        longest_q, longest_k = call.longest if call.lengths else (q.size(1), k.size(1))
        torch.ops.aten._flash_attention_backward(
            grad_out, q, k, v, out, lse, cum_q, cum_k, longest_q, longest_k,
            call.dropout_p, call.causal, empty, empty,
            window_size_left=call.window[0], window_size_right=call.window[1],
        )  # fmt: skip
    _take_time(q, k, call, backward=True)
    if call.generation == 2:
        return _workspace_2(q, k, call)
    return _workspace_3(q, k, v, call) if call.generation == 3 else _workspace_4(q, k, v, call)


def _take_time(q: Tensor, k: Tensor, call: Call, *, backward: bool) -> None:
    time = rank_time()
    if time is None:
        return
    batch: float = q.size(0)
    queries, keys = q.size(1), k.size(1)
    if call.lengths:
        (batch, queries), (_, keys) = packed(q.size(0), call.longest[0]), packed(k.size(0), call.longest[1])
    time.attention(
        *(_KERNELS[call.generation], backward, batch),
        *(q.size(-2), k.size(-2), queries, keys, q.size(-1), call.causal),
        *(str(q.dtype).removeprefix("torch."), keys_in_window(call.causal, *call.window)),
    )


def _workspace_2(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """csrc/flash_attn/flash_api.cpp, mha_bwd and mha_varlen_bwd."""
    heads, head_size = q.shape[-2:]
    rounded = _round_up(head_size, 32 if head_size <= 128 else 64)
    sequences, rows = _rows(q, call, _ROWS)
    sums = _floats(q, heads * rows)
    copies = 1
    if call.deterministic:
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        copies = math.ceil(processors / (sequences * heads))
    workspace = [_floats(q, copies * rows * heads * rounded)]
    if k.size(-2) != heads:  # a key and a value gradient for every query head
        shape = (*k.shape[:-2], heads, head_size)
        workspace += [torch.empty(shape, dtype=k.dtype, device=k.device) for _ in ("key", "value")]
    del workspace
    return sums


def _workspace_3(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """hopper/flash_api.cpp, mha_bwd, for compute capability 9.0."""
    heads, head_size = q.shape[-2:]
    key_heads = k.size(-2)
    rounded = next(size for size in (64, 96, 128, 192, 256) if max(head_size, v.size(-1)) <= size)
    masked = call.causal or call.window != ANY_WINDOW
    query_rows = 128 if rounded <= 64 else 80 if rounded == 128 and not masked else 64
    key_rows = 128 if rounded <= 128 else 96 if rounded <= 192 else 80
    sequences, rows = _rows(q, call, query_rows)
    _, key_total = _rows(k, replace(call, lengths=call.lengths and call.lengths[::-1]), key_rows)
    sums = _floats(q, heads * rows)
    workspace = [_floats(q, heads * rows), _floats(q, heads * rows * rounded)]
    if key_heads != heads:
        workspace += [_floats(q, key_heads * key_total * rounded) for _ in ("key", "value")]
    blocks = math.ceil((call.longest[0] if call.lengths else q.size(1)) / query_rows)
    workspace.append(torch.empty(blocks * sequences * heads, dtype=torch.int32, device=q.device))
    del workspace
    return sums


def _workspace_4(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """flash_attn/cute/interface.py, _flash_attn_bwd, but for the semaphores of a deterministic one."""
    heads, head_size = q.shape[-2:]
    query_rows, key_rows, cluster = _tiles_4(head_size, call)

    def rows_of(part: Tensor, lengths: Tensor | None, multiple: int, cluster: int = 1) -> int:
        if lengths is not None:
            multiple *= cluster
            return _round_up(part.size(0) + lengths.numel() * multiple, multiple)
        blocks = math.ceil(part.size(1) / multiple)
        return part.size(0) * multiple * (blocks + blocks % cluster)

    of_queries, of_keys = call.lengths or (None, None)
    rows = rows_of(q, of_queries, query_rows)
    of_blackwell_alone = _major() in (10, 11) and head_size == v.size(-1) == 256
    workspace = [] if of_blackwell_alone else [_floats(q, heads * rows * _round_up(head_size, 32))]
    sums = _floats(q, heads * rows)
    workspace.append(_floats(q, heads * rows))
    if k.size(-2) != heads and not of_blackwell_alone:
        keys = k.size(-2) * rows_of(k, of_keys, key_rows, cluster)
        workspace += [_floats(q, keys * _round_up(part.size(-1), 32)) for part in (k, v)]
    del workspace
    return sums


def _tiles_4(head_size: int, call: Call) -> tuple[int, int, int]:
    """Rows of queries and of keys that a thread block works on, and thread blocks of a cluster."""
    if _major() < 9:
        raise AssertionError("Unsupported compute capability. Supported: 9.x, 10.x, 11.x, 12.x")
    if _major() == 12:
        return 64, 64, 1
    if _major() != 9:
        return 128, 128, 2 if head_size >= 128 else 1
    masked = call.causal or call.window != ANY_WINDOW
    query_rows = 128 if head_size <= 64 else 80 if 96 < head_size <= 128 and not masked else 64
    return query_rows, 128 if head_size <= 128 else 96 if head_size <= 192 else 64, 1


def _floats(like: Tensor, count: int) -> Tensor:
    return like.new_empty(count, dtype=torch.float32)


def _major() -> int:
    return torch.cuda.get_device_capability()[0]


def _rows(part: Tensor, call: Call, multiple: int) -> tuple[int, int]:
    """Sequences, and rows of their padded or packed buffers."""
    if call.lengths is not None:
        sequences = call.lengths[0].numel() - 1
        return sequences, _round_up(part.size(0) + sequences * multiple, multiple)
    return part.size(0), part.size(0) * _round_up(part.size(1), multiple)


class Attention(torch.autograd.Function):
    """One call, of (q, k, v), (q, kv) or (qkv,); packed parts lie along the third dimension from the last."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = _unpacked(tensors)
        head_size = parts[0].size(-1)
        padded = [pad_head(part) for part in parts]
        out, lse, softmax, state = forward(padded[0], padded[1], padded[2], call)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*padded, out, lse, state)
        ctx.call, ctx.packed = call, len(tensors)
        ctx.set_materialize_grads(False)  # no zeros for the results without gradient
        ctx.mark_non_differentiable(lse, softmax)
        return out[..., :head_size], lse, softmax

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, _ = ctx.saved_tensors
        gradients = _empty_gradients(q, k, v, ctx.packed)
        head_size = grad_out.size(-1)
        backward(pad_head(grad_out), q, k, v, out, lse, ctx.call)
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


def pad_head(part: Tensor) -> Tensor:
    return part if part.size(-1) % 8 == 0 else pad(part, [0, 8 - part.size(-1) % 8])


def _contiguous_rows(part: Tensor) -> Tensor:
    return part if part.stride(-1) == 1 else part.contiguous()


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def attend(call: Call, *tensors: Tensor) -> Any:
    """The output, or with `return_softmax` output, log-sum-exp and softmax."""
    check_devices(tensors)
    out, lse, softmax = Attention.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return (out, lse, softmax if call.dropout_p > 0 else None) if call.return_softmax else out


def check_devices(tensors: Sequence[Tensor]) -> None:
    """Raises RuntimeError, as the packages do, if a tensor is not on a GPU."""
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"flash attention needs tensors on a CUDA device, got one on {tensor.device}")
