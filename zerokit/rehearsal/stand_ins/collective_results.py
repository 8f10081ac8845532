"""What the collectives of a virtual process group write and return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.futures import Future

from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.stand_ins.exchanged_tensors import has_values

_FORGETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
"""Whether torch's C++ keeps work without its Python half."""


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy the values of `source` to `target`, if there are any."""
    if has_values(target) or has_values(source):
        target.copy_(source.view(target.shape) if source.numel() == target.numel() else source)


def flatten(parts: list[torch.Tensor]) -> None:
    """The temporary that NCCL's list forms gather into or scatter from, where the parts are of one size.

    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, newLikeFlat.
    """
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
