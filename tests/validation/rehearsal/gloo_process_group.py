"""A process group that really talks: the rehearsal's own checks run two ranks with real values over gloo.

What is written down and what is counted are the same as in a rehearsal; only the values are those of all
ranks. Every collective is built on the broadcast of bytes, which gloo does in place and without memory of
torch's.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from zerokit.patches import put
from zerokit.rehearsal.native.backend import uncounted
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.ranks.groups import Groups
from zerokit.rehearsal.stand_ins.collective_results import done, operation_of
from zerokit.rehearsal.stand_ins.torch_distributed import MONITORED_BARRIERS, install_groups
from zerokit.rehearsal.stand_ins.virtual_process_group import VirtualProcessGroup
from zerokit.rehearsal.watching.steps import Traffic

_TIMEOUT = datetime.timedelta(minutes=5)
# Inside deepspeed.zero.Init `torch.empty` makes tensors of the GPU, in the dtype of the model.
_empty = torch.empty


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as host memory, of the same shape and strides: it shares the memory of the (virtual) device.

    The caller keeps `tensor` alive.
    """
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor
    memory = tensor.untyped_storage()
    shared = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), torch.device("cpu"), memory.nbytes())
    view = _empty(0, dtype=tensor.dtype)
    return view.set_(shared, tensor.storage_offset(), tensor.shape, tensor.stride())


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous host tensor: gloo has no transport for every number format."""
    return tensor.view(-1).view(torch.uint8)


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    with torch.no_grad(), uncounted():
        yield


class RealProcessGroup(VirtualProcessGroup):
    """Every collective of torch.distributed between processes, over gloo.

    Args:
        rank: of this process in the group.
        size: of the group.
        traffic: where the calls are written down.
        store: the group's own store, through which its ranks meet.
    """

    def __init__(self, rank: int, size: int, traffic: Traffic, store: Any) -> None:
        exchange = Exchange(None, rank, size)
        super().__init__(rank, size, traffic, exchange, Groups(exchange))
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, _TIMEOUT)

    def _held_by_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What each rank holds in `tensor`, by rank; in host memory, contiguous."""
        own = host_view(tensor).contiguous()
        held = []
        for root in range(self._size):
            part = own.clone() if root == self._rank else torch.empty_like(own)
            if part.numel():
                self._gloo.broadcast(_bytes_of(part), root).wait()
            held.append(part)
        return held

    # ---- reductions
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        self._note("all_reduce", tensors)
        with _unseen():
            for tensor in tensors:
                host_view(tensor).copy_(_reduced(self._held_by_all(tensor), operation_of(opts)))
        return done(tensors)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("reduce", tensors)
        with _unseen():
            for tensor in tensors:
                total = _reduced(self._held_by_all(tensor), operation_of(opts))
                if self._rank == getattr(opts, "rootRank", 0):
                    host_view(tensor).copy_(total)
        return done(tensors)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._note("reduce_scatter", [source])
        with _unseen():
            total = _reduced(self._held_by_all(source), operation_of(opts))
            host_view(output).copy_(total.view(self._size, -1)[self._rank].view(output.shape))
        return done(output)

    def reduce_scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, sources, strict=True):
            self._note("reduce_scatter", parts)
            with _unseen():
                for rank, part in enumerate(parts):
                    total = _reduced(self._held_by_all(part), operation_of(opts))
                    if rank == self._rank:
                        host_view(output).copy_(total)
        return done(outputs)

    # ---- gathers
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._note("all_gather", [output])
        with _unseen():
            held = torch.cat([part.view(-1) for part in self._held_by_all(source)])
            host_view(output).copy_(held.view(output.shape))
        return done(output)

    def allgather(self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None) -> Any:
        for parts, source in zip(outputs, sources, strict=True):
            self._note("all_gather", parts)
            self._spread(parts, source)
        return done(outputs)

    def allgather_coalesced(self, outputs: Any, sources: list[torch.Tensor], opts: Any = None) -> Any:
        for rank, parts in enumerate(outputs):
            self._note("all_gather", parts)
            with _unseen():
                for part, source in zip(parts, sources, strict=True):
                    host_view(part).copy_(self._held_by_all(source)[rank])
        return done(outputs)

    def gather(self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None) -> Any:
        self._traffic.add("gather", sources[0].nbytes * self._size, self._size)
        # Only the root has anywhere to put it.
        self._spread(outputs[0] if outputs else [], sources[0])
        return done(outputs)

    def _spread(self, parts: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        with _unseen():
            for part, held in zip(parts, self._held_by_all(source), strict=False):
                host_view(part).copy_(held.view(part.shape))

    # ---- the rest
    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("broadcast", tensors)
        with _unseen():
            for tensor in tensors:
                host_view(tensor).copy_(self._held_by_all(tensor)[getattr(opts, "rootRank", 0)])
        return done(tensors)

    def scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any = None) -> Any:
        self._traffic.add("scatter", outputs[0].nbytes * self._size, self._size)
        with _unseen():
            own = [host_view(part) for part in sources[0]] if sources else [host_view(outputs[0])] * self._size
            held = self._held_by_all(torch.stack(own))[getattr(opts, "rootRank", 0)]
            host_view(outputs[0]).copy_(held[self._rank])
        return done(outputs)

    def alltoall_base(
        self, output: Any, source: Any, output_sizes: list[int], source_sizes: list[int], opts: Any = None
    ) -> Any:
        self._note("all_to_all", [source])
        with _unseen():
            targets = output.split(output_sizes) if output_sizes else output.chunk(self._size)
            parts = source.split(source_sizes) if source_sizes else source.chunk(self._size)
            self._swap(targets, parts)
        return done(output)

    def alltoall(self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("all_to_all", sources)
        with _unseen():
            self._swap(outputs, sources)
        return done(outputs)

    def _swap(self, targets: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Part i goes to rank i, and what rank i sends arrives in target i."""
        own = torch.cat([_bytes_of(host_view(part).contiguous()) for part in parts])
        arrived: Any = _empty(sum(target.nbytes for target in targets), dtype=torch.uint8)
        self._gloo.alltoall_base(
            arrived, own, [target.nbytes for target in targets], [part.nbytes for part in parts]
        ).wait()
        for target, held in zip(targets, arrived.split([target.nbytes for target in targets]), strict=True):
            host_view(target).copy_(held.clone().view(target.dtype).view(target.shape))

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        self._note("send", tensors)
        with _unseen():
            for tensor in tensors:
                self._gloo.send([_bytes_of(host_view(tensor).contiguous())], destination, tag).wait()
        return done(tensors)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        self._note("recv", tensors)
        with _unseen():
            for tensor in tensors:
                arrived = _empty(tensor.nbytes, dtype=torch.uint8)
                self._gloo.recv([arrived], source, tag).wait()
                host_view(tensor).copy_(arrived.view(tensor.dtype).view(tensor.shape))
        return done(tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        self._note("recv", tensors)
        with _unseen():
            arrived = _empty(tensors[0].nbytes, dtype=torch.uint8)
            self._gloo.recv_anysource([arrived], tag).wait()
            host_view(tensors[0]).copy_(arrived.view(tensors[0].dtype).view(tensors[0].shape))
        return done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        with _unseen():
            self._gloo.barrier().wait()
        return done(None)

    all_to_all_single = alltoall_base
    # The names that torch had before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single


def _reduced(held: Sequence[torch.Tensor], operation: Any) -> torch.Tensor:
    """All ranks' tensors in one, added up in float32 at the least."""
    exact = held[0].dtype not in (torch.float16, torch.bfloat16)
    stacked = torch.stack(list(held)) if exact else torch.stack(list(held)).float()
    if operation == dist.ReduceOp.SUM:
        result = stacked.sum(0)
    elif operation == dist.ReduceOp.AVG:
        result = stacked.mean(0)
    elif operation == dist.ReduceOp.PRODUCT:
        result = stacked.prod(0)
    elif operation == dist.ReduceOp.MAX:
        result = stacked.amax(0)
    elif operation == dist.ReduceOp.MIN:
        result = stacked.amin(0)
    else:
        raise NotImplementedError(f"a real run over gloo has no reduction {operation}")
    return result.to(held[0].dtype)


def install(traffic: Traffic, rank: int, world_size: int) -> None:
    """As :func:`collectives.install`, for processes that meet at MASTER_ADDR:MASTER_PORT."""

    def create(store: Any, group_rank: int, group_size: int, _timeout: datetime.timedelta) -> VirtualProcessGroup:
        return RealProcessGroup(group_rank, group_size, traffic, store)

    def meet() -> Any:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(  # type: ignore[attr-defined]
            address, port, world_size, is_master=rank == 0, timeout=_TIMEOUT
        )

    def monitored_barrier(*_: Any, **__: Any) -> None:
        dist.barrier()

    install_groups(create, meet, rank=rank, world_size=world_size)
    # torch's own asks for a group that calls itself gloo.
    for barrier in MONITORED_BARRIERS:
        put(barrier, monitored_barrier)
