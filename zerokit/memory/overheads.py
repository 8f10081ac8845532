"""GPU memory that the replay does not count: fragmentation, the CUDA context and NCCL. All of it is a guess.

`zerokit rehearse`, which knows the process groups, adds the same in more detail
(zerokit/rehearsal/overheads.py).
"""

from __future__ import annotations

from zerokit.hardware.outside_allocator import (
    CUDA_CONTEXT,
    NCCL_CONNECTION,
    NCCL_FEW_CHANNELS,
    NCCL_FIRST_COMMUNICATOR_HIGH,
    NCCL_ONE_GPU_HIGH,
)
from zerokit.memory.term import Term

FRAGMENTATION = 0.12
"""Of the peak, that the allocator may hold beyond what it has handed out. A guess that has not been compared
with rehearsals; a full GPU makes it give back what it caches."""


def overhead_terms(peak_bytes: int, world_size: int) -> tuple[Term, ...]:
    """What to add to the peak of what the allocator hands out; `bytes` is the low end."""
    nccl = (
        (0, NCCL_ONE_GPU_HIGH)
        if world_size == 1
        else (NCCL_FEW_CHANNELS * NCCL_CONNECTION, NCCL_FIRST_COMMUNICATOR_HIGH)
    )
    high = round(FRAGMENTATION * peak_bytes)
    return (
        _guess(
            "fragmentation",
            (0, high),
            f"up to {FRAGMENTATION:.0%} of the peak",
            "torch's allocator, rehearsed",
        ),
        _guess(
            "CUDA context",
            CUDA_CONTEXT,
            "by card and driver",
            "measured (ml-engineering, training/performance)",
        ),
        _guess(
            "communication (NCCL)",
            nccl,
            "by GPUs and network",
            "NCCL src/init.cc, and measured (ml-engineering)",
        ),
    )


def _guess(name: str, bounds: tuple[int, int], symbols: str, source: str) -> Term:
    low, high = bounds
    return Term(
        name,
        low,
        "always",
        symbols,
        "",
        source,
        certainty="guess",
        low_bytes=low,
        high_bytes=high,
        versions="any",
    )
