"""A rank ends with the launcher that started it.

On one machine DeepSpeed's runner hands on no signals, and a launcher that is killed never does: its ranks
would train on, hold the GPUs and write into the output folder.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

from zerokit import console

_PROGRAMS = {"deepspeed", "torchrun", "accelerate"}
_MODULES = ("deepspeed.launcher", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands")
_POLL_SECONDS = 1.0


class Launcher(NamedTuple):
    """A process, told from a later one with the same number."""

    pid: int
    started: str
    """Ticks after the machine's start, as /proc has it."""

    @property
    def runs(self) -> bool:
        """Whether it is still there, and has not ended unnoticed by its own parent."""
        stat = _stat(self.pid)
        return stat is not None and stat.started == self.started and stat.state not in "ZX"


class _Stat(NamedTuple):
    state: str
    parent: int
    started: str


def launchers() -> list[Launcher]:
    """The launchers that started this process, the nearest first: torchrun's, or DeepSpeed's two."""
    found = []
    pid = os.getppid()
    while (stat := _stat(pid)) is not None and _is_launcher(pid):
        found.append(Launcher(pid, stat.started))
        pid = stat.parent
    return found


def end_with_launcher(rank: int) -> None:
    """End this process soon after a launcher of it has ended; nothing if none has started it."""
    if watched := launchers():
        threading.Thread(target=_watch, args=(watched, rank), daemon=True).start()


def _watch(watched: list[Launcher], rank: int) -> None:
    never = threading.Event()
    while all(launcher.runs for launcher in watched):
        never.wait(_POLL_SECONDS)
    gone = next(launcher for launcher in watched if not launcher.runs)
    console.note(f"zerokit: rank {rank} ends, because its launcher (process {gone.pid}) has ended")
    os._exit(1)  # whatever the main thread waits for


def _is_launcher(pid: int) -> bool:
    """Whether a process is Python that runs a launcher: a shell that was told to start one is none."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    if not Path(words[0]).name.startswith("python"):
        return False
    first = next((at for at, word in enumerate(words[1:], start=1) if word == "-m" or word[:1] != "-"), None)
    if first is None:
        return False
    if words[first] == "-m":
        return words[first + 1].startswith(_MODULES)
    return Path(words[first]).name in _PROGRAMS


def _stat(pid: int) -> _Stat | None:
    """From proc(5): the name in parentheses may hold anything, the rest is separated by spaces."""
    try:
        words = Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return _Stat(words[0], int(words[1]), words[19])
