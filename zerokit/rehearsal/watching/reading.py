"""How long reading and tokenising a batch takes on this machine, and how long a step would wait for it.

It is measured on this machine, and part of virtual time only if requested.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.clock import WorkKind

if TYPE_CHECKING:
    from zerokit.rehearsal.native.clock import Clock

_MEASURED = "measure how long reading a batch takes"
_FETCHES = [
    Patch("torch.utils.data._utils.fetch:_MapDatasetFetcher", "fetch", _MEASURED),
    Patch("torch.utils.data._utils.fetch:_IterableDatasetFetcher", "fetch", _MEASURED),
]
_SLOT = struct.Struct("<qqq")
"""Of a process: batches, nanoseconds of all of them, and of the first, which may do what is done once."""
_NAME = "reading data"


@dataclass
class _Workers:
    """The workers of one loader's iterator, in virtual time: each makes one batch after another."""

    count: int
    ahead: int
    """Batches that are being made or wait to be taken."""
    asked: list[int] = field(default_factory=list)
    """When each batch was taken, and another one requested."""
    ready: deque[int] = field(default_factory=deque)
    """When the last batches were ready, one for each worker."""
    begun: int = 0

    def next_ready(self, now: int, takes: int) -> int:
        """When the next batch is ready, which takes a worker so long."""
        taken = len(self.asked)
        asked = self.asked[taken - self.ahead] if taken >= self.ahead else self.begun
        free = self.ready.popleft() if len(self.ready) >= self.count else self.begun
        self.ready.append(max(asked, free) + takes)
        self.asked.append(max(now, self.ready[-1]))
        return self.ready[-1]


class _Figures:
    """What the processes of one loader's iterator measure, in memory that they share."""

    def __init__(self, workers: int) -> None:
        self._slots = mmap.mmap(-1, (1 + workers) * _SLOT.size)

    def add(self, process: int, taken: int) -> None:
        """A batch, which took so many nanoseconds; `process`: 0, or 1 and the worker's number."""
        at = process * _SLOT.size
        if at >= len(self._slots):  # a loader within another's worker
            return
        batches, whole, first = _SLOT.unpack_from(self._slots, at)
        _SLOT.pack_into(self._slots, at, batches + 1, whole + taken, first or taken)

    def of_processes(self) -> Iterator[tuple[int, int, int]]:
        """Of each as of `_SLOT`."""
        yield from _SLOT.iter_unpack(self._slots[:])


def _seconds(figures: Iterable[_Figures]) -> float | None:
    """Of one batch, on the average of all that were measured; None if none was."""
    found = [one for each in figures for one in each.of_processes() if one[0]]
    later = [(batches - 1, whole - first) for batches, whole, first in found if batches > 1]
    counted = later or [(batches, whole) for batches, whole, _ in found]
    if not counted:
        return None
    batches, whole = (sum(parts) for parts in zip(*counted, strict=True))
    return float(whole / batches / 1e9)


class Reading:
    """Measures what loaders and their workers do; `takes_time`: whether that is virtual time, too."""

    def __init__(self, clock: Clock, *, takes_time: bool) -> None:
        self._clock = clock
        self.takes_time = takes_time
        self._measuring: _Figures | None = None
        """Where this process writes; None in a search of the data."""
        self._figures: WeakKeyDictionary[Any, _Figures] = WeakKeyDictionary()
        """Of iterators."""
        self._trained_on: list[_Figures] = []
        self._workers: WeakKeyDictionary[Any, _Workers] = WeakKeyDictionary()
        self.workers = 0
        """Of the loader that gave the last batch to train on."""

    def install(self) -> None:
        """Go around what makes a batch of a data set's examples."""
        for fetch in _FETCHES:
            wrap(fetch, self._measured)

    def _measured(self, fetch: Any, fetcher: Any, *arguments: Any, **given: Any) -> Any:
        from torch.utils.data import get_worker_info

        if self._measuring is None:
            return fetch(fetcher, *arguments, **given)
        figures, worker = self._measuring, get_worker_info()
        start = time.perf_counter_ns()
        with self._clock.untimed():  # in workers, too
            batch = fetch(fetcher, *arguments, **given)
        figures.add(0 if worker is None else 1 + worker.id, time.perf_counter_ns() - start)
        return batch

    @property
    def batches(self) -> int:
        """That were measured of what is trained on."""
        return sum(batches for one in self._trained_on for batches, *_ in one.of_processes())

    @property
    def seconds(self) -> float | None:
        """Of one batch to train on, on the average of all that were measured; None if none was."""
        return _seconds(self._trained_on)

    @contextmanager
    def _into(self, figures: _Figures | None) -> Iterator[None]:
        before, self._measuring = self._measuring, figures
        try:
            yield
        finally:
            self._measuring = before

    def iterator(self, iterate: Callable[[Any], Any], loader: Any) -> Any:
        """The loader's iterator by `iterate`, whose workers measure their batches."""
        figures = _Figures(int(getattr(loader, "num_workers", 0)))
        with self._into(figures):
            iterator = iterate(loader)
        # Where it stays for the next epoch, so do its workers.
        self._figures.setdefault(iterator, figures)
        return iterator

    @contextmanager
    def next_batch(self, iterator: Any) -> Iterator[None]:
        """While an iterator gives a batch, which takes no time but that of :meth:`on_batch`."""
        with self._clock.untimed(), self._into(self._figures.get(iterator)):
            yield

    def on_batch(self, iterator: Any, *, is_trained_on: bool) -> None:
        """A batch has come, which takes its time if `takes_time`."""
        figures = self._figures.get(iterator)
        if figures is None:
            return
        if is_trained_on:
            self.workers = int(getattr(iterator, "_num_workers", 0))
            if figures not in self._trained_on:
                self._trained_on.append(figures)
        seconds = _seconds(self._trained_on if is_trained_on else [figures])
        if not self.takes_time or seconds is None:
            return
        now, takes = self._clock.now, round(seconds * 1e9)
        ready, count = now + takes, int(getattr(iterator, "_num_workers", 0))
        if count:
            ahead = count * int(getattr(iterator, "_prefetch_factor", None) or 1)
            workers = self._workers.setdefault(iterator, _Workers(count, ahead, begun=now))
            ready = workers.next_ready(now, takes)
        self._clock.work_on_host(WorkKind.DATA, _NAME, ready - now)
