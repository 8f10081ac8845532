"""Measures how long calls take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_AT_LEAST = 0.02
"""Seconds for which a measurement repeats its work."""


def seconds_of(
    work: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
    summary: Callable[[list[float]], float] = min,
) -> float:
    """Seconds of one call, repeated at least five times.

    Args:
        work: ends when everything that it has started has ended.
        clock: in seconds; `time.thread_time` if only this thread works, and others may be running.
    """
    work()
    times: list[float] = []
    begin = clock()
    while len(times) < 5 or clock() - begin < _AT_LEAST:
        start = clock()
        work()
        times.append(clock() - start)
    return summary(times)


def summary_for(ranks: int) -> Callable[[list[float]], float]:
    """The summary of the times of equal calls.

    It is the minimum for one rank, because disturbances only make a call slower, and the median for several
    ranks, because ranks disturb each other in a training step, too.
    """
    return min if ranks == 1 else statistics.median


def mean_of_ranks(measure: Callable[[], float], ranks: int, device: str) -> float:
    """The mean of the seconds that all ranks of the group measure at the same time.

    Args:
        ranks: in the group; 1: there is no group.
    """
    if ranks == 1:
        return measure()
    dist.barrier()
    seconds = torch.tensor(measure(), dtype=torch.float64, device=device)
    dist.all_reduce(seconds)
    return seconds.item() / ranks
