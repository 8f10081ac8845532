"""Host memory available to a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zerokit.control_groups import group_files


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Memory of this machine, or the limit of its control groups (container, cluster job)."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Memory limits of this process's control groups and their parents, of versions 2 and 1."""
    for (text,) in group_files("memory", "memory.max", ("memory.limit_in_bytes",), root):
        with suppress(ValueError):  # "max"
            yield int(text)
