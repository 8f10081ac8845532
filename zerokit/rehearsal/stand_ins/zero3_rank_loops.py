"""ZeRO-3's loops over all ranks, done at once.

DeepSpeed cuts a buffer into one tensor per rank before a reduce-scatter and after an all-gather, which takes
long at a thousand ranks. The two functions here allocate the same blocks in the same order without pieces.
They replace functions of a known source (DeepSpeed 0.19.8), to which they pass small buffers with values.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from types import FunctionType
from typing import Any

import torch

from zerokit.patches import Patch, apply
from zerokit.rehearsal.native.backend import SMALL_BYTES
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_COLLECTIVES = "deepspeed.runtime.comm.coalesced_collectives"
_HANDLE = "deepspeed.runtime.zero.partition_parameters:AllGatherCoalescedHandle"
_REDUCE_SCATTER = Patch(_COLLECTIVES, "reduce_scatter_coalesced", "do without a loop over all ranks")
_WAIT = Patch(_HANDLE, "wait", "do without a loop over all ranks")
_KNOWN_SOURCES = {"reduce_scatter_coalesced": "d05c7b944514f710", "wait": "66e20af5df511a69"}
"""Start of the SHA-256 of each function's source."""


@stand_in("reduce_scatter_coalesced", "AllGatherCoalescedHandle")
def install(setup: RankSetup) -> None:
    """Replace the two functions once DeepSpeed is imported."""
    apply(_REDUCE_SCATTER, _reduce_scatter)
    apply(_WAIT, _wait)


def _reduce_scatter(original: Any) -> Any:
    if not _is_known(original):
        return original
    import deepspeed.runtime.comm.coalesced_collectives as module

    @functools.wraps(_innermost(original))
    @torch.no_grad()
    def reduce_scatter_coalesced(tensors: list[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
        if not tensors or all(_is_small(tensor) for tensor in tensors):
            return list(original(tensors, group))
        ranks = module.dist.get_world_size(group)
        rank = module.dist.get_rank(group)
        parts = [math.ceil(tensor.numel() / ranks) for tensor in tensors]
        if len(tensors) == 1 and tensors[0].numel() % ranks == 0:
            flat = tensors[0].view(-1)
        else:
            padding = _padding(tensors, parts, ranks)  # alive to the end, as in the original
            flat = torch.cat([*(tensor.view(-1) for tensor in tensors), *padding])
        flat.div_(ranks)
        own = flat.narrow(0, rank * sum(parts), sum(parts))
        module._torch_reduce_scatter_fn(flat, own, group=group)
        starts = [sum(parts[:index]) for index in range(len(parts))]
        sizes = [_part_size(tensor, part, rank) for tensor, part in zip(tensors, parts, strict=True)]
        return [own.narrow(0, start, size) for start, size in zip(starts, sizes, strict=True)]

    return reduce_scatter_coalesced


def _wait(original: Any) -> Any:
    if not _is_known(original):
        return original
    import deepspeed.runtime.zero.partition_parameters as module

    status = module.ZeroParamStatus

    @functools.wraps(_innermost(original))
    def wait(handle: Any, handle_dependency: bool = True) -> None:
        if handle.complete or handle.quantization or _is_small(handle.partitions[0]):
            original(handle, handle_dependency)
            return
        handle.allgather_handle.wait()
        flat = handle.partitions[0]
        for param in handle.params:
            assert param.ds_status == status.INFLIGHT, f"expected param {param.ds_summary()} to be inflight"
            gathered = torch.cat([flat.as_strided((param.ds_numel,), (1,), 0)])
            param.data = gathered.view(param.ds_shape).to(param.ds_tensor.dtype)
            param.ds_status = status.AVAILABLE
            if handle_dependency:
                flat.record_stream(module.get_accelerator().current_stream())
        handle.complete = True
        if not handle_dependency:
            module.AllGatherCoalescedHandle.data_buffer.append([flat])

    return wait


def _padding(tensors: list[torch.Tensor], parts: list[int], ranks: int) -> list[torch.Tensor]:
    """The padding of the last ranks' parts, in DeepSpeed's order: by rank, then by tensor."""
    pairs = list(zip(tensors, parts, strict=True))
    first = min(_full_parts(tensor, part) for tensor, part in pairs)
    missing = [part - _part_size(tensor, part, rank) for rank in range(first, ranks) for tensor, part in pairs]
    like = tensors[0]
    return [torch.empty(size, dtype=like.dtype, device=like.device) for size in missing if size > 0]


def _full_parts(tensor: torch.Tensor, part: int) -> int:
    return tensor.numel() // part if part else 0


def _part_size(tensor: torch.Tensor, part: int, rank: int) -> int:
    """Elements of `tensor` that belong to `rank` when it is cut into parts of `part` elements."""
    return min(max(tensor.numel() - rank * part, 0), part)


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() < SMALL_BYTES


def _innermost(function: Any) -> Any:
    """The function that decorators were put around; DeepSpeed's own leave no `__wrapped__`."""
    while True:
        if hasattr(function, "__wrapped__"):
            function = function.__wrapped__
            continue
        inside = [
            cell.cell_contents
            for cell in getattr(function, "__closure__", None) or ()
            if isinstance(cell.cell_contents, FunctionType)
        ]
        if len(inside) != 1:
            return function
        function = inside[0]


def _is_known(function: Any) -> bool:
    innermost = _innermost(function)
    source = inspect.getsource(innermost).encode()
    return hashlib.sha256(source).hexdigest().startswith(_KNOWN_SOURCES[innermost.__name__])
