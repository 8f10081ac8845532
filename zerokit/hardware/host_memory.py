"""How much memory this machine grants a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Of this machine, or what the control groups leave of it: a container's, a job's on a cluster.

    Args:
        root: where the system's files are.
    """
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    """Memory limits of this process's control groups and of those above them, of version 2 and 1.

    Source: Linux, cgroups(7), "/proc/[pid]/cgroup": lines of ``number:controllers:path``.
    """
    mounted = root / "sys/fs/cgroup"
    # The groups at the top are those of a container that hides where it stands.
    lines = ["0::/", "1:memory:/"]
    with suppress(OSError):
        lines += (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            hierarchy, name = mounted, "memory.max"
        elif "memory" in controllers.split(","):
            hierarchy, name = mounted / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # out of sight, or without a limit: "max"
                yield int((hierarchy / folder / name).read_text())
