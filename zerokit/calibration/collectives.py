"""Measures collectives over NCCL or gloo."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zerokit.calibration.seconds import mean_of_ranks

_SMALL = 2**12
"""Bytes of a buffer for which only the start of a collective takes time."""
_CALLS = 10


class Measured(NamedTuple):
    """Means over all ranks."""

    launch: float
    """CPU seconds of a collective's launch, for all kinds."""
    start: float
    """Seconds of a very small collective besides its launch, for all kinds."""
    buses: Mapping[str, float]
    """For each kind, bytes per second of a rank's link in a large collective after its start."""


def collectives(device: str, ranks: int, large: int) -> Measured:
    """Measure collectives of the initialized group, whose ranks have a device each.

    Args:
        large: bytes of a rank's largest buffer.
    """
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    starts, launches, buses = [], [], {}
    for kind, (work, moved) in _kinds(ranks).items():
        seconds = []
        for size in (_SMALL, large):
            part = torch.ones(size // 4 // ranks, device=device)
            whole = torch.ones(len(part) * ranks, device=device)
            call = partial(work, whole, part)
            whole_call = partial(_median_seconds, call, time.perf_counter, wait)
            seconds.append(mean_of_ranks(whole_call, ranks, device))
            if size == _SMALL:
                # CPU seconds of the launch in this rank's thread.
                launch_alone = partial(_median_seconds, call, time.thread_time, lambda: None)
                launches.append(mean_of_ranks(launch_alone, ranks, device))
        starts.append(seconds[0])
        buses[kind] = moved * (large - _SMALL) / (seconds[-1] - seconds[0])
    launch = statistics.mean(launches)
    return Measured(launch, statistics.mean(starts) - launch, buses)


def _kinds(ranks: int) -> Mapping[str, tuple[Callable[[Any, Any], Any], float]]:
    """For each kind, its call with a buffer and a rank's part, and the share of the buffer on a link."""
    share = (ranks - 1) / ranks
    return {
        "all_reduce": (lambda whole, part: dist.all_reduce(whole), 2 * share),
        "all_gather": (lambda whole, part: dist.all_gather_into_tensor(whole, part), share),
        "reduce_scatter": (lambda whole, part: dist.reduce_scatter_tensor(part, whole), share),
    }


def _median_seconds(work: Callable[[], Any], clock: Callable[[], float], ends: Callable[[], Any]) -> float:
    """Median seconds of a call until `ends` returns; each call begins on all ranks together."""
    times = []
    for _ in range(_CALLS):
        dist.barrier()
        start = clock()
        work()
        ends()
        times.append(clock() - start)
    return statistics.median(times)
