"""GPU memory that the replay does not count: fragmentation, the CUDA context and NCCL. All of it is a guess.

The figures are those of `zerokit rehearse` (zerokit/rehearsal/overheads.py, where each is explained).
"""

from __future__ import annotations

from zerokit.memory.term import Term
from zerokit.units import GIB, MIB

_CONTEXT = (round(0.47 * GIB), round(0.92 * GIB))
_CONNECTION = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
_LOW_CHANNELS, _FIRST_COMMUNICATOR, _ONE_GPU = 8, round(1.45 * GIB), 256 * MIB
FRAGMENTATION = 0.12
"""Of the peak, that the allocator may hold beyond what it has handed out. In the rehearsals of the grid it is
nearly always less; a full GPU makes it give back what it caches."""


def overhead_terms(peak_bytes: int, world_size: int) -> tuple[Term, ...]:
    """What to add to the peak of what the allocator hands out; `bytes` is the low end."""
    nccl = (0, _ONE_GPU) if world_size == 1 else (_LOW_CHANNELS * _CONNECTION, _FIRST_COMMUNICATOR)
    high = round(FRAGMENTATION * peak_bytes)
    return (
        _guess(
            "fragmentation",
            (0, high),
            f"up to {FRAGMENTATION:.0%} of the peak",
            "torch's allocator, rehearsed",
        ),
        _guess(
            "CUDA context", _CONTEXT, "by card and driver", "measured (ml-engineering, training/performance)"
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
