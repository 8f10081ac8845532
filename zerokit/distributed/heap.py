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
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
"""Variables of the environment by which glibc adjusts neither threshold (mallopt(3))."""


def keep_freed_memory() -> None:
    """Have this process keep what it frees from now on for what it allocates next.

    What is free now goes back to the system first. Nothing is done where the environment sets glibc's
    allocator up, and with another C library.
    """
    by_user = any(name in os.environ for name in _SETTINGS)
    if by_user or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "") or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
        # Either setting alone would end glibc's adjusting of both.
        libc.mallopt(_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        libc.mallopt(_TRIM_THRESHOLD, LARGEST_KEPT)
