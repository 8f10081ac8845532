"""Lets go of the pages of mapped files, of which a process would hold ever more that reads all over them.

With each page come those around it, 16 or 512: a few tokens of an example take many times their bytes.
The pages stay in the system's cache, where they are found when they are read again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 64 * 2**20
_MOST_PAGES = _MOST_BYTES // mmap.PAGESIZE


class MappedFiles:
    """Of this process, which keeps what it has of them when this is made, and not much more."""

    def __init__(self) -> None:
        self._figures = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._kept = self._pages()

    def keep_few(self) -> None:
        """Let go of their pages if many have come; nothing that was written to them is lost."""
        if self._pages() - self._kept > _MOST_PAGES:
            let_go = ctypes.CDLL(None).madvise
            for begin, size in _shared():  # those that are locked stay
                let_go(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
            self._kept = self._pages()

    def _pages(self) -> int:
        """That are resident and a file's, private or shared."""
        return int(os.pread(self._figures, 200, 0).split()[2])


def _shared() -> Iterator[tuple[int, int]]:
    """Begin and size of shared mappings of files: what a private one has may be written nowhere else."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        span, permissions, _, _, _, *name = line.split(maxsplit=5)
        # A device's pages may not come again.
        if permissions.endswith("s") and name and name[0].startswith("/") and not name[0].startswith("/dev/"):
            begin, end = (int(word, 16) for word in span.split("-"))
            yield begin, end - begin
