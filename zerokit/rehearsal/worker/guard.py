"""No process of a rehearsal outlives it, however it ends.

A process between zerokit and each rank runs only this file, and becomes the parent of all processes that the
rank leaves behind (the subreaper of prctl(2)). It ends them when the rank has ended, or when a pipe is closed
whose other end zerokit holds: when zerokit closes it or is killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_TAKE_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_SAME_ADDRESSES = 0x0040000  # ADDR_NO_RANDOMIZE


class GuardedProcess(subprocess.Popen[bytes]):
    """A process that ends together with all that it starts, and with this one.

    It has the exit code of `command`, `variables` in its environment, and `streams` as of Popen.
    """

    def __init__(self, command: list[str], variables: Mapping[str, str], **streams: Any) -> None:
        ended_pipe, held = os.pipe()
        self._held = [held]
        # Not in this environment: preloaded libraries are for the rank only.
        set_for_it = ["env", *(f"{name}={value}" for name, value in variables.items())]
        guard = [sys.executable, "-I", "-S", __file__, str(ended_pipe)]
        try:
            super().__init__([*guard, *set_for_it, *command], pass_fds=[ended_pipe], start_new_session=True, **streams)
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(ended_pipe)

    def kill(self) -> None:
        """Have all of it end that still runs; any thread may call this, more than once."""
        with suppress(IndexError):
            os.close(self._held.pop())

    def end(self) -> None:
        """End all of it that still runs, and wait until it has."""
        self.kill()
        self.wait()


def _main() -> NoReturn:
    ended_pipe, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(ended_pipe, False)
    ctypes.CDLL(None).prctl(_TAKE_ORPHANS, 1)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    rank = _start(command)
    status = _status_of(rank, ended_pipe, woken)
    _end_children()  # first: readers of the rank's output wait until all that could print have ended
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own is enough
        if os.WTERMSIG(status) == signal.SIGINT:  # which Python handles itself
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _start(command: list[str]) -> int:
    rank = os.fork()
    if rank == 0:
        try:
            os.setpgid(0, 0)  # a script may end its own group
            libc = ctypes.CDLL(None)
            libc.prctl(_END_WITH_PARENT, signal.SIGKILL)
            libc.personality(_SAME_ADDRESSES)  # so that sets have the same order each time; containers may forbid it
            os.execvp(command[0], command)  # noqa: S606
        finally:
            os._exit(127)
    return rank


def _status_of(rank: int, ended_pipe: int, woken: int) -> int:
    """The status as of waitpid(2); SIGKILL if the pipe is closed before the rank ends."""
    poll = select.poll()  # any descriptor, also one that is too large for select
    for one in (ended_pipe, woken):
        poll.register(one, select.POLLIN)
    while True:
        if ended_pipe in dict(poll.poll()):
            return signal.SIGKILL
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == rank:
                    return ended[1]


def _end_children() -> None:
    """Also theirs, which become this process's as they lose their own parent."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)  # it is not reaped yet, so the number is still its own
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                stat = (folder / "stat").read_bytes()
                # proc(5): the name, in brackets and of any bytes, then the state and the parent.
                if int(stat.rpartition(b")")[2].split()[1]) == os.getpid():
                    yield int(folder.name)


if __name__ == "__main__":
    _main()
