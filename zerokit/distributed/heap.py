"""Keeps memory that a CPU rank frees for its next allocations, as torch's allocator does on a GPU.

A training step frees nearly all its memory, and the next step allocates it again. glibc returns large blocks
to the system, so each step would fault in their pages anew: about a fortieth of its time for small models.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``, by glibc's malloc.h."""
LARGEST_IN_HEAP = 32 * 2**20
"""Bytes; larger blocks return to the system at once. glibc's own threshold grows up to this value."""
LARGEST_KEPT = 2**30
"""Bytes that may be free at the end of the heap."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
"""Environment variables that make glibc stop adjusting its thresholds (mallopt(3))."""


def keep_freed_memory() -> None:
    """Keep what this process frees from now on for its next allocations.

    Does nothing if the environment configures glibc's allocator, or with another C library.
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
