"""Has batches take the time that reading them takes on this machine, as the search of the data measured it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from zerokit.rehearsal.native.clock import Clock, WorkKind

_NAME = "reading data"


class Reading:
    """The host waits for each batch; the workers of a loader read ahead meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """When the last batch of an iterator was ready."""

    def take_time(self, iterator: Any, seconds: float) -> None:
        """Let time pass until the next batch is ready, which takes one process so long.

        Workers together make a batch in a share of that time, until the batches that wait to be taken are
        `prefetch_factor` for each worker. They begin as the first batch is requested.
        """
        now, takes = self._clock.now, round(seconds * 1e9)
        workers, ahead = getattr(iterator, "_num_workers", 0), getattr(iterator, "_prefetch_factor", None)
        ready = now + takes
        if workers:
            each = takes // workers
            last = self._ready.get(iterator, ready - each)
            ready = self._ready[iterator] = max(last + each, now - workers * (ahead or 1) * each)
        self._clock.work_on_host(WorkKind.DATA, _NAME, max(ready - now, 0))
