"""A process group of one process that answers for all ranks and records every collective.

Ranks that are rehearsed at the same time exchange integers, and small tensors that one rank sends to others.
Otherwise the other ranks count as holding the same values as this rank: a sum over N ranks is N times the own
value, a gather is N copies. Large tensors with made-up values are not touched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from zerokit.rehearsal.ranks.exchange import UNKNOWN, Awaited, Exchange
from zerokit.rehearsal.ranks.groups import Groups
from zerokit.rehearsal.ranks.roles import Ranks
from zerokit.rehearsal.stand_ins.collective_results import (
    Received,
    copy,
    done,
    flatten,
    from_bytes,
    has_values,
    is_exchanged,
    operation_of,
    reduce_values,
    size_and_dtype,
    to_bytes,
)
from zerokit.rehearsal.watching.steps import Traffic

BACKEND = "rehearsal"
_OF_ONE_SIZE = frozenset({"all_reduce", "reduce_scatter", "reduce", "broadcast", "scatter", "all_gather_into_tensor"})
"""Collectives that are called with tensors of one size on all ranks."""


def _size(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _collective(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have calls of a collective go through `VirtualProcessGroup._run`."""

    @functools.wraps(method)
    def call(self: VirtualProcessGroup, *arguments: Any, **given: Any) -> Any:
        return self._run(method, arguments, given)

    return call


def _coalesced(collective: Callable[..., Any]) -> Callable[..., Any]:
    """The same collective of several tensors in one call."""

    @_collective
    def call(self: VirtualProcessGroup, outputs: Any, sources: list[torch.Tensor], opts: Any = None) -> Any:
        for output, source in zip(outputs, sources, strict=True):
            collective(self, output, source, opts)
        return done(outputs)

    return call


class VirtualProcessGroup(dist.ProcessGroup):
    """Every collective of torch.distributed for one rank of `size`, by this module's rule."""

    number = 0
    """Among the groups of the same ranks."""
    supports_splitting = False
    """Torch asks the backend of a group, which is the group itself."""

    def __init__(self, rank: int, size: int, traffic: Traffic, exchange: Exchange, groups: Groups) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank = rank
        self._size = size
        self._traffic = traffic
        self._exchange = exchange
        self._groups = groups
        self._name = BACKEND

    def _run(self, collective: Callable[..., Any], arguments: Any, given: Any) -> Any:
        return collective(self, *arguments, **given)

    def _note(self, name: str, tensors: Sequence[torch.Tensor], opts: Any = None) -> None:
        is_of_rows = any(tensor.numel() > max(tensor.shape, default=1) for tensor in tensors)
        self._traffic.add(name, _size(tensors), self._size, is_of_rows=is_of_rows)
        self._groups.publish()
        if name not in ("send", "recv"):
            size = f" of {_size(tensors):,} bytes" if name in _OF_ONE_SIZE else ""
            # Options of older torch lack it, and without options no caller waits.
            is_async = getattr(opts, "asyncOp", True)
            self._exchange.record_call(self._ranks, name + size, number=self.number, is_async=is_async)

    # ---- the values of other ranks
    @functools.cached_property
    def _ranks(self) -> Ranks:
        return tuple(dist.get_process_group_ranks(self))

    def _exchange_values(
        self,
        name: str,
        tensor: torch.Tensor,
        *,
        by: int | None = None,
        to: int | None = None,
        value: Any = None,
        opts: Any = None,
    ) -> dict[int, Any]:
        """The known values of the group's ranks, by place in the group.

        Args:
            by: the place of the one rank whose value is wanted; None for all.
            to: the place of the one rank that wants them; None for all.
            value: to send in place of that of `tensor`.
        """
        exchange = self._exchange
        if not exchange.is_active or self._size == 1:
            return {}
        if not is_exchanged(tensor, from_one=by is not None):
            return {}
        sends = by is None or by == self._rank
        own = UNKNOWN if not sends else to_bytes(tensor) if value is None else value
        of = () if to is not None and to != self._rank else None if by is None else (self._ranks[by],)
        call = f"{name} of {size_and_dtype(tensor)}" if name in _OF_ONE_SIZE else name
        is_async = getattr(opts, "asyncOp", False)
        values = exchange.share(self._ranks, call, own, of=of, number=self.number, is_async=is_async)
        places = {rank: place for place, rank in enumerate(self._ranks)}
        return {places[rank]: held for rank, held in values.items() if rank in places}

    # ---- what torch asks of a group
    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda"), torch.device("cpu")]

    def _get_backend(self, _device: torch.device) -> VirtualProcessGroup:
        return self

    @property
    def pg_name(self) -> str:
        # torch asks a group that it destroys, when its table has it no more.
        self._name = str(dist.distributed_c10d._world.pg_names.get(self, self._name))
        return self._name

    @property
    def group_name(self) -> str:
        return self.pg_name

    # ---- reductions
    def _reduce(self, tensor: torch.Tensor, operation: Any, values: dict[int, Any] | None = None) -> None:
        if not has_values(tensor):
            return
        with torch.no_grad():
            if values and self._rank in values:
                own = values[self._rank]
                held = [values.get(place, own) for place in range(self._size)]
                tensor.copy_(reduce_values(tensor, held, operation))
                return
            if operation == dist.ReduceOp.SUM:
                tensor.mul_(self._size)
            elif operation == dist.ReduceOp.PRODUCT:
                tensor.pow_(self._size)

    @_collective
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        self._note("all_reduce", tensors, opts)
        for tensor in tensors:
            values = self._exchange_values("all_reduce", tensor, opts=opts)
            self._reduce(tensor, operation_of(opts), values)
        return done(tensors)

    allreduce_coalesced = allreduce

    @_collective
    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("reduce", tensors, opts)
        root = getattr(opts, "rootRank", 0)
        for tensor in tensors:
            values = self._exchange_values("reduce", tensor, to=root, opts=opts)
            if self._rank == root:
                self._reduce(tensor, operation_of(opts), values)
        return done(tensors)

    @_collective
    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._note("reduce_scatter", [source], opts)
        if has_values(output):
            copy(output, source.reshape(self._size, -1)[self._rank].reshape(output.shape))
            self._reduce(output, operation_of(opts))
        return done(output)

    @_collective
    def reduce_scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, sources, strict=True):
            self._note("reduce_scatter", parts, opts)
            flatten(parts)
            copy(output, parts[self._rank])
            self._reduce(output, operation_of(opts))
        return done(outputs)

    reduce_scatter_single_coalesced = _coalesced(reduce_scatter_single)

    # ---- gathers
    @_collective
    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._note("all_gather", [output], opts)
        values = self._exchange_values("all_gather_into_tensor", source, opts=opts)
        if has_values(output) and output.numel():
            output.view(self._size, -1).copy_(source.reshape(1, -1).expand(self._size, -1))
            self._fill(list(output.view(self._size, -1)), values)
        return done(output)

    def _fill(self, parts: Sequence[torch.Tensor], values: dict[int, Any]) -> None:
        """Copy the known values of other ranks into their parts."""
        for place, held in values.items():
            if place != self._rank and held is not UNKNOWN:
                parts[place].copy_(from_bytes(parts[place], held))

    all_gather_single_coalesced = _coalesced(all_gather_single)

    @_collective
    def allgather(self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None) -> Any:
        for parts, source in zip(outputs, sources, strict=True):
            self._note("all_gather", parts, opts)
            flatten(parts)
            values = self._exchange_values("all_gather", source, opts=opts)
            if has_values(source):
                for part in parts:
                    copy(part, source)
                self._fill(parts, values)
        return done(outputs)

    @_collective
    def allgather_coalesced(self, outputs: Any, sources: list[torch.Tensor], opts: Any = None) -> Any:
        for parts in outputs:
            self._note("all_gather", parts, opts)
            for part, source in zip(parts, sources, strict=True):
                copy(part, source)
        return done(outputs)

    @_collective
    def gather(self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None) -> Any:
        self._traffic.add("gather", _size(sources) * self._size, self._size)
        values = self._exchange_values("gather", sources[0], to=getattr(opts, "rootRank", 0), opts=opts)
        for parts in outputs:
            for part in parts:
                copy(part, sources[0])
            self._fill(parts, values)
        return done(outputs)

    # ---- the rest
    @_collective
    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("broadcast", tensors, opts)
        root = getattr(opts, "rootRank", 0)
        for tensor in tensors:
            self._take(tensor, self._exchange_values("broadcast", tensor, by=root, opts=opts), root)
        return done(tensors)

    def _take(self, tensor: torch.Tensor, values: dict[int, Any], place: int) -> None:
        """Copy the values of the rank at `place` into `tensor`, if it is another rank and they are known."""
        if values.get(place, UNKNOWN) is not UNKNOWN and place != self._rank:
            with torch.no_grad():
                tensor.copy_(from_bytes(tensor, values[place]))

    @_collective
    def scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any = None) -> Any:
        self._traffic.add("scatter", _size(outputs) * self._size, self._size)
        root = getattr(opts, "rootRank", 0)
        parts = [to_bytes(part) for part in sources[0]] if sources else None
        values = self._exchange_values("scatter", outputs[0], by=root, value=parts, opts=opts)
        if sources:
            copy(outputs[0], sources[0][self._rank])
        elif root in values:
            self._take(outputs[0], {root: values[root][self._rank]}, root)
        return done(outputs)

    @_collective
    def alltoall_base(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: list[int],
        source_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        self._note("all_to_all", [source], opts)
        if output.numel() == source.numel():
            copy(output, source)
        if not source_sizes and not output_sizes:  # with sizes, what each rank hands over is its own
            chunks = list(source.chunk(self._size))
            values = self._exchange_values(
                "all_to_all", source, value=[to_bytes(chunk) for chunk in chunks], opts=opts
            )
            own = {place: held[self._rank] for place, held in values.items()}
            self._fill(list(output.chunk(self._size)), own)
        return done(output)

    all_to_all_single = alltoall_base

    @_collective
    def alltoall(self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None) -> Any:
        self._note("all_to_all", sources, opts)
        for output, source in zip(outputs, sources, strict=True):
            if output.numel() == source.numel():
                copy(output, source)
        return done(outputs)

    @_collective
    def send(self, tensors: list[torch.Tensor], destination: int, tag: int = 0) -> Any:
        self._note("send", tensors)
        if self._exchange.is_active:
            for tensor in tensors:
                self._exchange.send(self._ranks[destination], tag, size_and_dtype(tensor), to_bytes(tensor))
        return done(tensors)

    @_collective
    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        self._note("recv", tensors)
        exchange = self._exchange
        if not exchange.is_active:
            return Received(lambda: None, source)
        awaited = [exchange.expect(self._ranks[source], tag, size_and_dtype(tensor)) for tensor in tensors]
        return Received(lambda: self._arrive(tensors, awaited), source)

    def _arrive(self, tensors: list[torch.Tensor], awaited: list[Awaited]) -> None:
        for tensor, one in zip(tensors, awaited, strict=True):
            held = self._exchange.wait_for(one)
            if held is not UNKNOWN:
                with torch.no_grad():
                    tensor.copy_(from_bytes(tensor, held))

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        """From the rank before this one: messages have no order."""
        return self.recv(tensors, (self._rank - 1) % self._size, tag)

    def barrier(self, opts: Any = None) -> Any:
        is_async = getattr(opts, "asyncOp", False)
        self._exchange.record_call(self._ranks, "barrier", number=self.number, is_async=is_async)
        return done(None)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Gloo's own; Lightning calls that of a group."""
        self.barrier()

    # The names that torch had before 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
