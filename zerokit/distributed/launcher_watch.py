"""Ends a rank after the launcher that started it has ended.

A killed launcher, and DeepSpeed's runner on one machine, pass no signals on: their ranks would train on, hold
the GPUs and write into the output folder.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple, NoReturn, get_args

from zerokit import console
from zerokit.choices import LAUNCHER_MODULES, Launcher
from zerokit.distributed import stuck
from zerokit.distributed.exit_reports import exit_now, has_lost_receiver, mark_outside_cause
from zerokit.distributed.preemption import LeaveRequest
from zerokit.distributed.process_table import runs, stat_of, variables_of

_PROGRAMS = (*get_args(Launcher), "zerokit")
"""zerokit starts deepspeed, as in the quickstart."""
_MODULES = (*LAUNCHER_MODULES, "zerokit")
_STARTED_BY_ANOTHER = "deepspeed.launcher.launch"
_LAUNCH_VARIABLE = "CROSS_RANK"
"""Only that launcher sets it, for each rank."""


class LauncherProcess(NamedTuple):
    """A process, distinguished from a later one with the same number."""

    pid: int
    started: str
    """Ticks after the machine's start (proc(5))."""


def launchers() -> list[LauncherProcess]:
    """The launchers that started this process, the nearest first: torchrun's, or DeepSpeed's two."""
    found = []
    pid = os.getppid()
    while (stat := stat_of(pid)) is not None and is_launcher(pid):
        found.append(LauncherProcess(pid, stat.started))
        pid = stat.parent
    if found and _STARTED_BY_ANOTHER in _words(found[-1].pid):
        # The runner that started it leads its group, as a shell has it, and may have ended before now.
        leader = os.getpgid(found[-1].pid)
        if stat_of(leader) is None:
            found.append(LauncherProcess(leader, started=""))
    return found


def watch(rank: int, for_stuck: stuck.StuckWatch | None, leave: LeaveRequest) -> None:
    """End this process soon after a launcher of it, unless `leave` lets it save; look for stuck ranks."""
    if _is_orphan():
        _end(rank, "its launcher has ended")
    watched = launchers()
    if watched or for_stuck is not None:
        threading.Thread(target=_watch, args=(watched, rank, for_stuck, leave), daemon=True).start()


def _watch(watched: list[LauncherProcess], rank: int, for_stuck: stuck.StuckWatch | None, leave: LeaveRequest) -> None:
    never = threading.Event()
    while True:
        gone = next((launcher for launcher in watched if not runs(*launcher)), None)
        if gone is not None and not leave.launcher_ended(gone.pid):
            break
        never.wait(stuck.POLL_SECONDS)
        if for_stuck is not None:
            for_stuck.look()
    _end(rank, f"its launcher (process {gone.pid}) has ended")


def _end(rank: int, reason: str) -> NoReturn:
    """End this process, whatever its main thread waits for. One rank of each machine reports why."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        threading.Event().wait(2 * stuck.POLL_SECONDS)  # a launcher ends the others when one has ended
        os._exit(1)
    console.note(
        f"zerokit: rank {rank} ends, because {reason}. Start the run again; training can resume from a checkpoint"
    )
    mark_outside_cause()
    exit_now(1)


def _is_orphan() -> bool:
    """Whether a process that started this rank ended before the rank could look for it."""
    if has_lost_receiver():
        return True
    parent = os.getppid()
    # A script between the two, as with --no_python, has the variable, too.
    if _LAUNCH_VARIABLE not in os.environ or _LAUNCH_VARIABLE in variables_of(parent):
        return False
    return os.getsid(parent) != os.getsid(0) or (parent == 1 and not is_launcher(parent))


def is_launcher(pid: int) -> bool:
    """Whether a process is Python running a launcher; a shell that was asked to start one is not."""
    words = _words(pid)
    if not Path(words[0]).name.startswith("python"):
        return False
    first = next((at for at, word in enumerate(words[1:], start=1) if word == "-m" or word[:1] != "-"), None)
    if first is None:
        return False
    if words[first] == "-m":
        return words[first + 1].startswith(_MODULES)
    return Path(words[first]).name in _PROGRAMS


def _words(pid: int) -> list[str]:
    """The command line of a process; one empty word if it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]
