"""Exit codes that ranks report to the process that started their launcher.

A launcher's own exit code is not enough: DeepSpeed's ends with 0 when its second process was killed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

_VARIABLE = "ZEROKIT_EXIT_REPORTS"

_pipe = os.environ.pop(_VARIABLE, None)
"""Where this rank reports. Processes that it starts do not inherit it."""
_is_outside = False


class ExitReport(NamedTuple):
    """How a rank has ended."""

    code: int
    is_outside: bool
    """Whether the cause was another rank, a machine or a network, so that another try may succeed."""


def mark_outside_cause() -> None:
    """Report that what ends this rank comes from outside of it: a lost rank, host or connection."""
    global _is_outside
    _is_outside = True


class ExitReports:
    """Receives the exit codes of ranks on this machine."""

    def __init__(self) -> None:
        self._reading_end, self._writing_end = os.pipe()
        os.set_blocking(self._reading_end, False)
        self.variables = {_VARIABLE: f"/proc/{os.getpid()}/fd/{self._writing_end}"}
        """Environment variables for the ranks. DeepSpeed's launcher passes on no open files."""

    def read(self) -> dict[int, ExitReport]:
        """The report of each rank that has made one since the last call."""
        with suppress(BlockingIOError):
            lines = os.read(self._reading_end, 2**16).decode().splitlines()
            return {int(rank): ExitReport(int(code), outside == "1") for rank, code, outside in map(str.split, lines)}
        return {}


def has_lost_receiver() -> bool:
    """Whether the process that this rank would report to has ended."""
    return _pipe is not None and not Path(_pipe).exists()


def exit_now(code: int) -> NoReturn:
    """Report the exit code of this rank, kill its loader workers, and end it without exit handlers."""
    if _pipe is not None:
        line = f"{os.environ['RANK']} {code} {int(_is_outside)}\n"
        with suppress(OSError):  # the process that started the launcher has ended
            os.write(os.open(_pipe, os.O_WRONLY | os.O_NONBLOCK), line.encode())
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        for worker in multiprocessing.active_children():
            with suppress(OSError, ValueError):  # it has ended
                worker.kill()
    os._exit(code)
