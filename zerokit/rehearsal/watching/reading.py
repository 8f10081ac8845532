"""How long reading and tokenising a batch takes on this machine, and what of it a step would wait for.

It is real work of this machine's, and measured: no part of virtual time, unless that is asked for.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections import deque
from collections.abc import Iterator
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
_PROCESSES = 256
"""That are measured; further workers of a loader are not."""
_NAME = "reading data"


@dataclass
class _Workers:
    """The workers of one loader's iterator, in virtual time: each makes one batch after another."""

    count: int
    ahead: int
    """Batches that are being made or wait to be taken."""
    asked: list[int] = field(default_factory=list)
    """When each batch was taken, and another one asked for."""
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


class Reading:
    """Measures what loaders do for their batches, in the workers that they start, too.

    Args:
        clock: of the rank.
        takes_time: whether the clock goes on by it.
    """

    def __init__(self, clock: Clock, *, takes_time: bool) -> None:
        self._clock = clock
        self._takes_time = takes_time
        # Seen by all processes that are forked from this one.
        self._slots = mmap.mmap(-1, _PROCESSES * _SLOT.size)
        self._workers: WeakKeyDictionary[Any, _Workers] = WeakKeyDictionary()
        self.workers = 0
        """Of the loader that gave the last batch."""

    def install(self) -> None:
        """Go around what makes a batch of a data set's examples."""
        for fetch in _FETCHES:
            wrap(fetch, self._measured)

    def _measured(self, fetch: Any, fetcher: Any, *arguments: Any, **given: Any) -> Any:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        place = 0 if worker is None else 1 + worker.id
        start = time.perf_counter_ns()
        batch = fetch(fetcher, *arguments, **given)
        if place < _PROCESSES:
            taken, at = time.perf_counter_ns() - start, place * _SLOT.size
            batches, whole, first = _SLOT.unpack_from(self._slots, at)
            _SLOT.pack_into(self._slots, at, batches + 1, whole + taken, first or taken)
        return batch

    @property
    def batches(self) -> int:
        """That were measured."""
        return sum(batches for batches, *_ in self._all())

    @property
    def seconds(self) -> float | None:
        """Of one batch, on the average of all that were measured; None if none was."""
        later = [(batches - 1, whole - first) for batches, whole, first in self._all() if batches > 1]
        batches, whole = (sum(figures) for figures in zip(*later, strict=True)) if later else (0, 0)
        if not batches:
            batches, whole = self.batches, sum(whole for _, whole, _ in self._all())
        return whole / batches / 1e9 if batches else None

    def _all(self) -> Iterator[tuple[int, int, int]]:
        yield from _SLOT.iter_unpack(self._slots[:])

    @contextmanager
    def next_batch(self, iterator: Any) -> Iterator[None]:
        """While a loader's iterator gives one, which takes no time but what is asked for."""
        with self._clock.untimed():
            yield
        self.workers = int(getattr(iterator, "_num_workers", 0))
        seconds = self.seconds
        if not self._takes_time or seconds is None:
            return
        now, takes = self._clock.now, round(seconds * 1e9)
        ready = now + takes
        if self.workers:
            ahead = self.workers * int(getattr(iterator, "_prefetch_factor", None) or 1)
            workers = self._workers.setdefault(iterator, _Workers(self.workers, ahead, begun=now))
            ready = workers.next_ready(now, takes)
        self._clock.work_on_host(WorkKind.DATA, _NAME, ready - now)
