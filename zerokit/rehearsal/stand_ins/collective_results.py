"""What the collectives of a virtual process group exchange, write and return.

Rehearsed ranks exchange the values of small tensors, and of integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.native.backend import SMALL_BYTES, is_made_up, uncounted
from zerokit.rehearsal.ranks.exchange import UNKNOWN

_MAX_EXCHANGED_BYTES = 2**24
"""Of a tensor of integers; larger ones may be computed."""


def has_values(tensor: torch.Tensor) -> bool:
    """Whether the values of `tensor` may be computed, and are few enough to be exchanged."""
    size = tensor.untyped_storage().nbytes()
    return size < SMALL_BYTES or (size <= _MAX_EXCHANGED_BYTES and not tensor.is_floating_point())


def is_exchanged(tensor: torch.Tensor, *, from_one: bool) -> bool:
    """Whether ranks exchange the values of such a tensor; the same answer on all ranks.

    Sizes of integers may differ between ranks, so they do not matter: a rank with too many sends
    :data:`UNKNOWN`. Floating-point numbers are exchanged if one rank sends a few to all others.
    """
    size = tensor.numel() * tensor.element_size()
    return not _is_floating(tensor) or (from_one and size < SMALL_BYTES)


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def size_and_dtype(tensor: torch.Tensor) -> str:
    """Size and dtype of a tensor, which have to be the same where it is received."""
    return f"{tensor.numel():,} x {str(tensor.dtype).removeprefix('torch.')}"


def to_bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, :data:`UNKNOWN` if its values were not computed."""
    if tensor.device.type == "meta" or not has_values(tensor):
        return UNKNOWN
    # Small integers are always computed, whatever else is in their storage.
    is_small = tensor.untyped_storage().nbytes() < SMALL_BYTES
    if is_made_up(tensor) and (_is_floating(tensor) or not is_small):
        return UNKNOWN
    with torch.no_grad(), uncounted():
        flat = tensor.detach().reshape(-1).contiguous().cpu()
        return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def from_bytes(like: torch.Tensor, values: bytes) -> torch.Tensor:
    """A host tensor of the shape and dtype of `like`, from :func:`to_bytes`."""
    with uncounted():
        if not values:
            return like.detach().cpu()
        flat = torch.frombuffer(bytearray(values), dtype=torch.uint8).view(like.dtype)
        return flat.view(like.shape) if flat.numel() == like.numel() else like.detach().cpu()


def reduce_values(like: torch.Tensor, held: Sequence[bytes], operation: Any) -> torch.Tensor:
    """The reduction by a `torch.distributed.ReduceOp` of the ranks' integers, each of the form of `like`."""
    operations = dist.ReduceOp
    parts = [(from_bytes(like, values), times) for values, times in Counter(held).items()]
    result = parts[0][0].clone()
    # torch's operation equals the one of that name only if it is on the left.
    with uncounted(), torch.no_grad():
        if operation == operations.SUM or operation == operations.AVG:
            result = sum(part * times for part, times in parts)
            if operation == operations.AVG:
                result = result.div(len(held), rounding_mode="trunc")
        elif operation == operations.PRODUCT:
            result = torch.stack([part**times for part, times in parts]).prod(0)
        elif operation == operations.MAX:
            result = torch.stack([part for part, _ in parts]).amax(0)
        elif operation == operations.MIN:
            result = torch.stack([part for part, _ in parts]).amin(0)
        elif operation == operations.BXOR:
            result = torch.zeros_like(result)
            for part in (part for part, times in parts if times % 2):
                result = result ^ part
        else:
            for part, _ in parts[1:]:
                result = result & part if operation == operations.BAND else result | part
        return result.to(like.dtype)


_FORGETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
"""Whether torch's C++ keeps work without its Python half."""


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the values of `source` to `target`, if there are any."""
    if has_values(target) or has_values(source):
        target.copy_(source.view(target.shape) if source.numel() == target.numel() else source)


def flatten(parts: list[torch.Tensor]) -> None:
    """Allocate the temporary of NCCL's list forms (newLikeFlat in ProcessGroupNCCL.cpp)."""
    first = parts[0]
    if first.is_cuda and all(part.shape == first.shape for part in parts):
        first.new_empty(first.numel() * len(parts))


def done(result: Any) -> Any:
    """The return value of a collective: completed work with `result`."""
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


class LastingWork(dist.Work):
    """Work whose Python object lives until it is waited for or its future is taken.

    Before 2.7 torch's C++, as that of DistributedDataParallel, keeps the other half alone, which never ends.
    """

    def __init__(self) -> None:
        super().__init__()
        if _FORGETS:
            rank_context().state(_Held).add(self)

    def let_go(self) -> None:
        """Last no longer than others hold it."""
        rank_context().state(_Held).discard(self)


class _Held(set[LastingWork]):
    """Work that has not been waited for."""


class Received(LastingWork):
    """A tensor that is filled when it is waited for."""

    def __init__(self, arrive: Callable[[], None], source: int) -> None:
        super().__init__()
        self._arrive: Callable[[], None] | None = arrive
        self._source = source

    def wait(self, timeout: Any = None) -> bool:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            arrive()
        self.let_go()
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self.wait()

    def _source_rank(self) -> int:
        return self._source


def operation_of(opts: Any) -> Any:
    """The requested reduction; a sum by default."""
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)
