"""The processor cores that this process may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from zerokit.control_groups import group_files

_TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> list[list[int]]:
    """CPU numbers grouped by physical core, ordered by socket.

    Source: ``topology/`` of each CPU in sysfs. A CPU without that folder counts as a core.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        place = (-1, cpu)
        with suppress(OSError, ValueError):
            folder = topology / f"cpu{cpu}" / "topology"
            socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
            place = (socket, core)
        found.setdefault(place, []).append(cpu)
    return [found[place] for place in sorted(found)]


def cpu_limit(root: Path = Path("/")) -> float | None:
    """The CPU limit of this process's control groups, in CPUs; None without a limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst ``cpu.max`` ("quota period", in µs), and
    Documentation/scheduler/sched-bwc.rst for version 1.
    """
    limits = []
    for texts in group_files("cpu", "cpu.max", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), root):
        with suppress(ValueError):  # "max"
            quota, period = map(int, " ".join(texts).split())
            if quota > 0 and period > 0:  # in version 1 -1 is no limit
                limits.append(quota / period)
    return min(limits, default=None)


def num_threads(num_processes: int) -> int:
    """Threads for each of `num_processes` that share this process's cores; at least 1.

    Limited by the affinity and the control groups of this process. Hyperthreads do not count.
    """
    if sys.platform != "linux":
        return max(1, (os.cpu_count() or 1) // num_processes)
    return within_limit(len(physical_cores(os.sched_getaffinity(0))) // num_processes, num_processes)


def within_limit(threads: int, num_processes: int) -> int:
    """Limit `threads` of each of `num_processes` by :func:`cpu_limit`; at least 1."""
    limit = cpu_limit()
    return max(1, threads if limit is None else min(threads, int(limit / num_processes)))
