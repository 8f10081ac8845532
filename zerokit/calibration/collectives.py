"""What collectives take, over NCCL or gloo."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from zerokit.calibration.seconds import seconds_at_once

_SMALL = 2**12
"""Bytes of a buffer whose collective takes as long as its start."""
_CALLS = 10


class Measured(NamedTuple):
    """In the mean of all ranks."""

    launch: float
    """Seconds of the host's thread for any of them."""
    start: float
    """Seconds of a collective of whatever kind that moves next to nothing, besides its launch."""
    buses: Mapping[str, float]
    """Of each kind, bytes per second that a rank's link carries in a large one after its start."""


def collectives(device: str, ranks: int, large: int) -> Measured:
    """Of the ranks of the group that has been made, each with a device of its own.

    Args:
        device: torch's, of their buffers.
        ranks: in the group.
        large: bytes of the largest buffer of a rank.
    """
    import torch

    starts, launches, buses = [], [], {}
    for kind, (work, moved) in _kinds(ranks).items():
        seconds = []
        for size in (_SMALL, large):
            part = torch.ones(size // 4 // ranks, device=device)
            whole = torch.ones(len(part) * ranks, device=device)
            call = partial(work, whole, part)
            seconds.append(seconds_at_once(lambda call=call: _seconds(call, device), ranks, device))  # type: ignore[misc]
            if size == _SMALL:
                launches.append(seconds_at_once(lambda call=call: _launch(call), ranks, device))  # type: ignore[misc]
        starts.append(seconds[0])
        buses[kind] = moved * (large - _SMALL) / (seconds[-1] - seconds[0])
    launch = statistics.mean(launches)
    return Measured(launch, statistics.mean(starts) - launch, buses)


def _kinds(ranks: int) -> Mapping[str, tuple[Callable[[Any, Any], Any], float]]:
    """What each does with a whole buffer and a rank's part of it, and the share of it that a link carries."""
    import torch.distributed as dist

    share = (ranks - 1) / ranks
    return {
        "all_reduce": (lambda whole, part: dist.all_reduce(whole), 2 * share),
        "all_gather": (lambda whole, part: dist.all_gather_into_tensor(whole, part), share),
        "reduce_scatter": (lambda whole, part: dist.reduce_scatter_tensor(part, whole), share),
    }


def _launch(work: Callable[[], Any]) -> float:
    """The median of what this rank's thread itself does for a call."""
    import torch.distributed as dist

    taken = []
    for _ in range(_CALLS):
        dist.barrier()
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)


def _seconds(work: Callable[[], Any], device: str) -> float:
    """The median of this rank's calls: as many as each other rank's, which begin together with them."""
    import torch
    import torch.distributed as dist

    taken = []
    for _ in range(_CALLS):
        dist.barrier()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
