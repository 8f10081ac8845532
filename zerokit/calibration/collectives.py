"""Measures collectives over NCCL or gloo."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

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
        device: torch's device of the buffers.
        ranks: in the group.
        large: bytes of a rank's largest buffer.
    """
    import torch

    starts, launches, buses = [], [], {}
    for kind, (work, moved) in _kinds(ranks).items():
        seconds = []
        for size in (_SMALL, large):
            part = torch.ones(size // 4 // ranks, device=device)
            whole = torch.ones(len(part) * ranks, device=device)
            call = partial(work, whole, part)
            seconds.append(mean_of_ranks(lambda call=call: _seconds(call, device), ranks, device))  # type: ignore[misc]
            if size == _SMALL:
                launches.append(mean_of_ranks(lambda call=call: _launch(call), ranks, device))  # type: ignore[misc]
        starts.append(seconds[0])
        buses[kind] = moved * (large - _SMALL) / (seconds[-1] - seconds[0])
    launch = statistics.mean(launches)
    return Measured(launch, statistics.mean(starts) - launch, buses)


def _kinds(ranks: int) -> Mapping[str, tuple[Callable[[Any, Any], Any], float]]:
    """For each kind, its call with a buffer and a rank's part, and the share of the buffer on a link."""
    import torch.distributed as dist

    share = (ranks - 1) / ranks
    return {
        "all_reduce": (lambda whole, part: dist.all_reduce(whole), 2 * share),
        "all_gather": (lambda whole, part: dist.all_gather_into_tensor(whole, part), share),
        "reduce_scatter": (lambda whole, part: dist.reduce_scatter_tensor(part, whole), share),
    }


def _launch(work: Callable[[], Any]) -> float:
    """Median CPU seconds of a call in this rank's thread."""
    import torch.distributed as dist

    times = []
    for _ in range(_CALLS):
        dist.barrier()
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def _seconds(work: Callable[[], Any], device: str) -> float:
    """Median seconds of a call; each call begins on all ranks together."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in range(_CALLS):
        dist.barrier()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
