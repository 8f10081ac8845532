"""Collectives that take time: on the communicator's stream, or the current one, as NCCL's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.futures import Future

from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.ranks.call_order import group_name
from zerokit.rehearsal.ranks.roles import Ranks
from zerokit.rehearsal.stand_ins.collective_results import LastingWork
from zerokit.rehearsal.stand_ins.virtual_process_group import VirtualProcessGroup
from zerokit.rehearsal.timing.rank_time import RankTime

_TO_ONE = ("send", "recv")
"""`recv_anysource` becomes a `recv`, which has the rank."""
_BARRIER_BYTES = 4


class _Submitted(LastingWork):
    """A collective on a stream of its own, for which the current stream waits, and not the host."""

    def __init__(self, time: RankTime, event: int, communicator: int, work: Any) -> None:
        super().__init__()
        self._time, self._event, self._communicator, self._work = time, event, communicator, work

    def wait(self, timeout: Any = None) -> bool:
        with self._time.clock.untimed():  # a message has come when the script waits for it
            self._work.wait()
        self._time.clock.wait(backend().current_stream, self._event)
        self.let_go()
        return True

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def is_completed(self) -> bool:
        self._time.clock.read()
        return self._time.clock.has_happened(self._event)

    def get_future(self) -> Future[Any]:
        """One that streams wait for, as DistributedDataParallel does."""
        future: Future[Any] = Future(devices=[torch.device("cuda", torch.cuda.current_device())])
        around = backend().current_stream
        backend().current_stream = self._communicator
        future.set_result(self._work.get_future().value())
        backend().current_stream = around
        self.let_go()
        return future


class TimedProcessGroup(VirtualProcessGroup):
    """A virtual process group whose collectives take the time of NCCL's, as if other ranks were there."""

    def __init__(self, *arguments: Any, time: RankTime) -> None:
        super().__init__(*arguments)
        self._time = time
        self._communicator = time.new_communicator()
        self._is_running = False
        self._streams_of_pairs: dict[tuple[str, int], int] = {}

    def _run(self, collective: Callable[..., Any], arguments: Any, given: Any) -> Any:
        if self._is_running:
            return collective(self, *arguments, **given)
        self._is_running = True
        before = len(self._traffic.calls)
        try:
            with self._time.clock.untimed():
                work = collective(self, *arguments, **given)
        finally:
            self._is_running = False
        calls = self._traffic.calls[before:]
        if not calls or not _is_on_device(arguments):
            return work
        name, size = calls[0].name, sum(call.bytes for call in calls)
        if name in _TO_ONE:
            communicator, pair, meeting = self._with_one(name, *arguments[1:], **given)
            event = self._time.collective(name, size, pair, communicator, meeting)
        else:
            communicator = self._communicator
            options = given.get("opts", arguments[-1])
            # Options of older torch lack it: then all run on the communicator's stream.
            is_async = bool(getattr(options, "asyncOp", True))
            event = self._time.collective(name, size, self._ranks, communicator, self._meeting(), is_async=is_async)
            # `send` and `recv` may be of one batch, whose calls are one launch.
            if self._time.clock.is_blocking:
                self._time.clock.synchronize_stream(communicator if is_async else backend().current_stream)
        return work if event is None else _Submitted(self._time, event, communicator, work)

    def _meeting(self) -> tuple[str, ...]:
        return ("group", group_name(self._ranks, self.number))

    def _with_one(self, name: str, peer: int, tag: int = 0, **_: Any) -> tuple[int, Ranks, tuple[str, ...]]:
        """The stream of a `send` or `recv`, both ranks, and its meeting.

        NCCL has a communicator for each pair, and runs at once what is sent both ways in one batch.
        """
        if (name, peer) not in self._streams_of_pairs:
            self._streams_of_pairs[name, peer] = self._time.new_communicator()
        pair = (self._ranks[self._rank], self._ranks[peer])
        source, target = pair if name == "send" else pair[::-1]
        return self._streams_of_pairs[name, peer], pair, ("pair", str(source), str(target), str(tag))

    def barrier(self, opts: Any = None) -> Any:
        """An all-reduce that the host waits for."""
        work = super().barrier(opts)
        self._time.collective(
            "all_reduce", _BARRIER_BYTES, self._ranks, self._communicator, self._meeting(), is_async=False
        )
        self._time.clock.synchronize_stream(backend().current_stream)
        return work


def _is_on_device(arguments: Any) -> bool:
    """Whether the first tensor among `arguments`, lists of them included, is on the device."""
    for value in arguments:
        while isinstance(value, list | tuple) and value:
            value = value[0]
        if isinstance(value, torch.Tensor):
            return value.is_cuda
    return False
