"""Reads proc(5)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """A line of /proc/PID/stat."""

    state: str
    """T: stopped by a signal; D: waits for a disk; Z, X: has ended."""
    parent: int
    started: str
    """Ticks after the machine's start."""
    cpu_seconds: float
    """Of the process and its children that have ended."""

    @property
    def runs(self) -> bool:
        """Whether it has not ended, also not as a zombie."""
        return self.state not in "ZX"


def stat_of(pid: int) -> Stat | None:
    """The state of a process; None if it has ended."""
    try:
        # Its name, in parentheses, may hold anything; the rest is separated by spaces.
        words = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return Stat(words[0], int(words[1]), words[19], sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK"))


def runs(pid: int, started: str | None = None) -> bool:
    """Whether a process has not ended, also not as a zombie; `started` tells it from a later one of its number."""
    stat = stat_of(pid)
    return stat is not None and stat.runs and started in (None, stat.started)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    folder = Path("/proc", str(pid), "task")
    with suppress(OSError):  # it has just ended
        for thread in folder.iterdir():
            with suppress(OSError):  # that one has
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)
    return found


def variables_of(pid: int) -> dict[str, str]:
    """The initial environment of a process; empty for another user's."""
    try:
        text = Path("/proc", str(pid), "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False if it has ended."""
    try:
        text = Path("/proc", str(pid), "status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line for line in text.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def lists_children() -> bool:
    """Whether this kernel reports the children of a process."""
    pid = str(os.getpid())
    return Path("/proc", pid, "task", pid, "children").exists()


def bytes_moved(pid: int) -> int | None:
    """Bytes that a process has written to files, and read from and written to disks; None if unknown."""
    try:
        lines = Path("/proc", str(pid), "io").read_text().splitlines()
    except OSError:
        return None
    counts = dict(line.split(": ") for line in lines)
    return sum(int(counts.get(name, 0)) for name in ("wchar", "read_bytes", "write_bytes"))


def process_with(file: Path) -> int | None:
    """A process of this machine that has `file` open, as the holder of torch's lock has (FileBaton)."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has just ended, or is another user's
            if link.samefile(file):
                return int(link.parts[2])
    return None
