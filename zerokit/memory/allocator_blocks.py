"""What torch's caching allocator hands out for a tensor that is allocated by itself."""

from __future__ import annotations

from zerokit.units import MIB

_SMALLEST_OF_ITS_OWN = 10 * MIB
_ROUNDING = 2 * MIB
_TOO_SMALL_TO_SPLIT = MIB


def block_bytes(number: int) -> int:
    """Of a large tensor in a segment of its own: rounded up to 2 MiB where the rest is not worth a block.

    Source: torch c10/cuda/CUDACachingAllocator.cpp, get_allocation_size and should_split (kMinLargeAlloc,
    kRoundLarge, kSmallSize).
    """
    if number < _SMALLEST_OF_ITS_OWN:
        return number
    whole = -(-number // _ROUNDING) * _ROUNDING
    return whole if whole - number <= _TOO_SMALL_TO_SPLIT else number
