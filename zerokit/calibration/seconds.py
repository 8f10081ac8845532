"""How long something takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

_AT_LEAST = 0.02
"""Seconds for which one measurement repeats its work."""


def seconds_of(
    work: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
    of: Callable[[list[float]], float] = min,
) -> float:
    """Of one call, repeated at least five times.

    Args:
        work: that ends when what it started has ended.
        clock: in seconds; `time.thread_time` where only this thread works, and others may be running.
        of: which of them.
    """
    work()
    taken: list[float] = []
    begin = clock()
    while len(taken) < 5 or clock() - begin < _AT_LEAST:
        start = clock()
        work()
        taken.append(clock() - start)
    return of(taken)


def chosen(ranks: int) -> Callable[[list[float]], float]:
    """Which of the seconds of many calls is theirs.

    The fastest, since what disturbs a call only makes it slower; of ranks that work at once the median, since
    that they disturb each other is part of it.
    """
    return min if ranks == 1 else statistics.median


def seconds_at_once(own: Callable[[], float], ranks: int, device: str) -> float:
    """The mean of what all ranks of the group measure, which begin together; the same on each of them.

    Args:
        own: measures, on this rank.
        ranks: in the group; 1: there is none.
        device: torch's, on which the group exchanges numbers.
    """
    if ranks == 1:
        return own()
    import torch
    import torch.distributed as dist

    dist.barrier()
    seconds = torch.tensor(own(), dtype=torch.float64, device=device)
    dist.all_reduce(seconds)
    return seconds.item() / ranks
