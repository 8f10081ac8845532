"""How ranks divide the requests of a run, and how completions reach rank 0.

Both go through a key-value store (``torch.distributed.Store``): a rank that is slow, or done, holds up no other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from zerokit.distributed.group import RankGroup
from zerokit.generation.requests import Request

_TAKEN, _SENT = "taken", "sent"
"""Keys of the store that count requests and messages; message number N is ``sent/N``."""
_POLL_SECONDS = 0.01


class SharedQueue:
    """Requests that ranks take from one counter of the store, in their order.

    Args:
        requests: the same on all ranks; the longest first, so that memory runs out early if it does.
        store: that of the run, which no other queue has used; it counts the messages of :func:`send`, too.
    """

    def __init__(self, requests: Sequence[Request], store: Any, num_ranks: int) -> None:
        self._requests = requests
        self._store = store
        self._num_ranks = num_ranks

    def take(self, most: int) -> list[Request]:
        """Return the next requests: near the end no more than this rank's share of all that are not complete.

        Ranks that start together, or end their batches together, so get batches of one size: a pass with few rows
        takes almost as long as one with many.
        """
        if self._num_ranks > 1:
            unfinished = len(self._requests) - self._store.add(_SENT, 0)
            most = min(most, max(1, -(-unfinished // self._num_ranks)))
        end = self._store.add(_TAKEN, most)
        return list(self._requests[end - most : end])

    def stop(self) -> None:
        """Leave nothing to take, on any rank."""
        self._store.add(_TAKEN, len(self._requests))


class BroadcastQueue:
    """The requests that rank 0 takes from a queue, on all ranks, which must call it together."""

    def __init__(self, queue: SharedQueue, group: RankGroup) -> None:
        self._queue, self._group = queue, group

    def take(self, most: int) -> list[Request]:
        """Return the next requests, at most `most`."""
        return self._group.from_main(lambda: self._queue.take(most))


def send(store: Any, message: Mapping[str, Any] | None) -> None:
    """Send a message (JSON) to rank 0; None as the last one of this rank."""
    store.set(f"{_SENT}/{store.add(_SENT, 1)}", json.dumps(message))


class Collector(threading.Thread):
    """Receives messages on rank 0 while it decodes.

    Args:
        receive: called with each message. An error of it ends the run.
        stop: called after such an error, to have ranks take no more.
    """

    def __init__(
        self, store: Any, num_ranks: int, receive: Callable[[dict[str, Any]], None], stop: Callable[[], None]
    ) -> None:
        super().__init__(name="collector", daemon=True)
        self._store = store
        self._num_ranks = num_ranks
        self._receive = receive
        self._stop_ranks = stop
        self._error: Exception | None = None

    def run(self) -> None:
        """Receive until each rank has sent its last message, or an error."""
        try:
            left = self._num_ranks
            for number in count(1):
                message = self._next(f"{_SENT}/{number}")
                if message is not None:
                    self._receive(message)
                elif (left := left - 1) == 0:
                    return
        except Exception as error:  # also the store's, if that is gone
            self._error = error
            with suppress(RuntimeError):
                self._stop_ranks()

    def _next(self, key: str) -> Any:
        while not self._store.check([key]):
            time.sleep(_POLL_SECONDS)
        message = json.loads(self._store.get(key))
        self._store.delete_key(key)
        return message

    def finish(self) -> None:
        """Wait for the last message. Raises the error of `receive`, if there was one."""
        self.join()
        if self._error is not None:
            raise self._error
