"""No process of a rehearsal outlives it, however it ends.

A rank runs in a process group of its own, with all that its script starts; what a script puts into another
session is known by the folder that only this rehearsal's environment names.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MARK = "ZEROKIT_REHEARSAL_PROCESSES"
_LOOKS = 100
_SECONDS_BETWEEN_LOOKS = 0.01


def marked(environment: dict[str, str] | None, mark: str) -> dict[str, str]:
    """The environment of a rank whose processes are to be found again by `mark`, a path of its own."""
    return {**os.environ, **(environment or {}), _MARK: mark}


def end_all(group: int, mark: str) -> None:
    """End the processes of a group, and those that were started under `mark` in another; not this one."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(_LOOKS):  # one of them may be starting another
        found = list(_under(mark))
        if not found:
            return
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _under(mark: str) -> Iterator[int]:
    wanted = os.fsencode(f"{_MARK}={mark}")
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with suppress(OSError):  # it is another person's, or has ended
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def end_with_the_command() -> None:
    """See that this process, which leads its group, and all that it starts end when zerokit is killed.

    The kernel ends this process with the one that started it, but not the children of this one: a process
    that watches this one does. It is no child of this one, whose script may wait for all of its own. To be
    called before there are threads.
    """
    command, rank = os.getppid(), os.getpid()
    set_signal_at_parents_death = 1  # PR_SET_PDEATHSIG, prctl(2)
    ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGKILL)
    ended = os.pidfd_open(rank)
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _end_after(rank, ended)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(ended)
    if os.getppid() != command:  # it was killed before the kernel had been told
        os.kill(rank, signal.SIGKILL)


def _end_after(rank: int, ended: int) -> None:
    # Whoever reads what the rank prints waits until nobody can print any more.
    os.closerange(0, ended)
    os.closerange(ended + 1, os.sysconf("SC_OPEN_MAX"))
    select.select([ended], [], [])
    os.setpgid(0, 0)  # out of the group, which zerokit ends together with this process if it can
    end_all(rank, os.environ.get(_MARK, ""))
