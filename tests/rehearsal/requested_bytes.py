"""Memory that operators of a rehearsal ask for, before the allocator rounds it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def requested() -> int:
    """Bytes requested from the device and not given back."""
    import torch

    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def peak(run: Callable[[], Any], *, beyond_results: bool = True) -> int:
    """Bytes at the peak of `run`, beyond what it returns, or beyond what there was before."""
    import torch

    before = requested()
    torch.cuda.reset_peak_memory_stats()
    results = run()
    at_peak = int(torch.cuda.memory_stats()["requested_bytes.all.peak"])
    after = requested()
    del results
    return at_peak - (after if beyond_results else before)
