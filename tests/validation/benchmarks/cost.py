"""What processes cost, next to each other: ratios of one run, which say the same on a busy machine.

Seconds depend on the machine and on what else it does; nothing here fails for taking long.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a process took: CPU seconds of all its threads, user and system, and what it printed."""

    cpu_seconds: float
    wall_seconds: float
    resident_bytes: int
    printed: str


def cost_of(command: Sequence[str], **options: Any) -> Cost:
    """Run `command` to its end; `options` as for ``subprocess.Popen``.

    Raises:
        SystemExit: it fails.
    """
    with tempfile.TemporaryFile("w+") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(command, **{"stdout": output, "stderr": subprocess.STDOUT, "text": True, **options})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - begun
        output.seek(0)
        printed = output.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{printed[-3000:]}")
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024, printed)


def costs_in_turn(commands: Mapping[str, Sequence[str]], runs: int, **options: Any) -> dict[str, list[Cost]]:
    """Each command `runs` times, in turn, so that a busy minute of the machine falls on all of them."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            costs[name].append(cost_of(command, **options))
    return costs


def fastest(costs: Sequence[Cost]) -> Cost:
    """Whatever else runs on the machine only adds."""
    return min(costs, key=lambda cost: cost.cpu_seconds)


def print_ratios(costs: Mapping[str, Sequence[Cost]], *bases: str) -> None:
    """A line for each command: CPU seconds, memory, and how many times the CPU of each of `bases` that is.

    The ratio is that of the fastest runs; in brackets, of the medians.
    """
    width = max(map(len, costs))
    for name, runs in costs.items():
        ratios = [f"{_ratio(runs, costs[base])} x {base}" for base in bases if base != name]
        best = fastest(runs)
        print(
            f"{name:{width}}  {best.cpu_seconds:7.2f} s CPU  {best.resident_bytes / 2**20:6,.0f} MiB   "
            + "   ".join(ratios)
        )


def _ratio(costs: Sequence[Cost], base: Sequence[Cost]) -> str:
    least = fastest(costs).cpu_seconds / fastest(base).cpu_seconds
    median = statistics.median(c.cpu_seconds for c in costs) / statistics.median(c.cpu_seconds for c in base)
    return f"{least:.2f} ({median:.2f})"
