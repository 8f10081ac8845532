"""CPU seconds that the light commands take to start, next to a bare Python: ``make bench``."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

ZEROKIT = str(Path(sys.executable).with_name("zerokit"))
PRESET = str(Path(__file__).resolve().parents[2] / "ds_configs" / "zero2.json")
RUNS = 7

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "zerokit --version": [ZEROKIT, "--version"],
    "zerokit check": [ZEROKIT, "check", PRESET],
    "zerokit config": [ZEROKIT, "config", "--zero-stage", "2"],
}


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the median of several runs, and its ratio to a bare Python's."""
    medians = {name: statistics.median(cpu_seconds(c) for _ in range(RUNS)) for name, c in COMMANDS.items()}
    bare = medians["python -c pass"]
    for name, seconds in medians.items():
        print(f"{name:20} {seconds:.3f} s CPU   {seconds / bare:4.1f} x")


if __name__ == "__main__":
    main()
