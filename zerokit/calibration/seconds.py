"""How long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_AT_LEAST = 0.02
"""Seconds for which one measurement repeats its work."""


def seconds_of(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Of one call: the fastest of at least five, since what disturbs one only makes it slower.

    Args:
        work: that ends when what it started has ended.
        clock: in seconds; `time.thread_time` where only this thread works, and others may be running.
    """
    work()
    taken: list[float] = []
    begin = clock()
    while len(taken) < 5 or clock() - begin < _AT_LEAST:
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)
