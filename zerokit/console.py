"""The consoles and the progress bar.

Results go to stdout; progress, notes and errors to stderr. Colours and bars are off if the stream is not a
terminal, or if ``NO_COLOR`` is set.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from zerokit.errors import ZerokitError, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@cache
def stdout() -> Console:
    """The console for results."""
    return _console(stderr=False)


@cache
def stderr() -> Console:
    """The console for notes, progress and errors."""
    return _console(stderr=True)


def note(message: str) -> None:
    """Print one plain line on stderr."""
    stderr().print(visible(message), markup=False, highlight=False, soft_wrap=True)


def discard(descriptor: int) -> None:
    """Drop what is written to a file descriptor from now on, such as what Python flushes at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def print_error(error: ZerokitError) -> None:
    """Print an error and its attached errors on stderr, one line each, without wrapping."""
    console = stderr()
    for each in (error, *error.others):
        console.print("zerokit: error:", style="bold red", end=" ", highlight=False)
        console.print(str(each), markup=False, highlight=False, soft_wrap=True)
    sys.stderr.flush()


_WIDE = 100
"""Columns of a terminal that has room for the whole bar."""


def progress(*, transient: bool = False, is_shown: bool = True) -> Progress:
    """The progress bar on stderr; nothing if stderr is not a terminal or `is_shown` is false.

    A task may set the field ``note``, printed behind the bar.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    # In a narrow terminal, numbers are kept whole and the bar is shorter.
    elapsed = [TimeElapsedColumn(table_column=Column(no_wrap=True))] if stderr().width >= _WIDE else []
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=min(30, stderr().width // 8)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        *elapsed,
        TextColumn("left"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}"),
    ]
    return Progress(*columns, console=stderr(), transient=transient, disable=not (is_shown and stderr().is_terminal))


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr)
