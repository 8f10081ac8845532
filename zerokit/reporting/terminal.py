"""Printing on stdout for people: reports of tables and lines, lines in colours, Markdown.

Lines are never folded, so that they can be searched. Where stdout is no terminal nothing is coloured, and
lines cost no import of rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zerokit.console import stdout

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    Part = Table | Text | str
    """Of a report."""

StyledLine = Sequence[tuple[str, str]]
"""Pieces of one line, each a text and its style."""

_UNBOUNDED = 10_000
"""Columns; wider than any table."""
GOOD, DOUBTFUL, BAD, REMARK = "green", "yellow", "bold red", "cyan"
"""Styles of verdicts and of findings."""


def show(parts: Iterable[Part]) -> None:
    """Print a report, part by part. A table that is wider than the terminal is set closer, then folded."""
    from rich.table import Table

    console = stdout()
    for part in parts:
        if isinstance(part, Table):
            unbounded = console.options.update(max_width=_UNBOUNDED)
            part.collapse_padding = console.measure(part, options=unbounded).maximum > console.width
            console.print(part)
        else:
            console.print(part, markup=False, highlight=False, soft_wrap=True)


def heading(text: str) -> Text:
    """A line of a report that stands above others."""
    from rich.text import Text

    return Text(text, style="bold")


def show_lines(lines: Iterable[StyledLine]) -> None:
    """Print lines, each when it comes."""
    if not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR"):
        for line in lines:
            print("".join(text for text, _ in line), flush=True)
        return
    from rich.text import Text

    for line in lines:
        stdout().print(Text.assemble(*line), soft_wrap=True)


def show_markdown(text: str) -> None:
    """Print Markdown: laid out on a terminal, as it is elsewhere."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.markdown import Markdown

    stdout().print(Markdown(text))
