"""What a rank that computes on its processor does with memory that it frees: keep it, as on a card.

A training step frees nearly all that it allocated, and the next one allocates it again. torch's allocator
keeps it on a card. On a processor glibc's gives blocks back to the system, whose pages the next step then has
to be given anew, a fault each: with small models some hundreds a step, about a fortieth of its time.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``, by glibc's malloc.h."""
LARGEST_IN_HEAP = 32 * 2**20
"""Bytes: larger blocks go back to the system at once. glibc's own threshold grows up to here, by itself."""
LARGEST_KEPT = 2**30
"""Bytes that may be free at the end of the heap; twice the other threshold, if glibc decides."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have this process keep what it frees for what it allocates next; not where somebody has set it up.

    Returns:
        whether it does; another C library than glibc cannot be told.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Either setting alone ends glibc's adjusting of both.
    return mallopt is not None and all(
        mallopt(which, size)
        for which, size in ((_MMAP_THRESHOLD, LARGEST_IN_HEAP), (_TRIM_THRESHOLD, LARGEST_KEPT))
    )
