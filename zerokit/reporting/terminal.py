"""Prints reports, coloured lines and Markdown on stdout.

Reports are folded between words on a terminal. Findings and redirected output are never folded, so that they
can be searched. Without a terminal there are no colours, and lines do not import rich.

All text goes through :func:`zerokit.errors.visible`, because names may come from untrusted files. So a part,
a cell and a piece of a line contain no line breaks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from zerokit.console import stdout
from zerokit.errors import visible
from zerokit.reporting.tables import HANG, STRONG, Row, StyledLine, Table, aligned, fold

if TYPE_CHECKING:
    from rich.text import Text

Part: TypeAlias = "Table | Text | Command | str"
"""A part of a report."""

GOOD, DOUBTFUL, BAD, REMARK = "green", "yellow", "bold red", "cyan"
"""Styles of verdicts and findings."""


@dataclass(frozen=True)
class Command:
    """A shell command in a report; its folded form can be pasted too."""

    words: Sequence[str]
    """Shell words, quoted."""

    def lines(self, width: int) -> list[str]:
        """The command, broken by backslashes into lines of at most `width` columns."""
        first, *words = map(visible, self.words)
        lines = [f"  {first}"]
        for word in words:
            if len(f"{lines[-1]} {word} \\") > width:
                lines[-1] += " \\"
                lines.append(" " * (2 + HANG) + word)
            else:
                lines[-1] += f" {word}"
        return lines


def show(parts: Iterable[Part]) -> None:
    """Print a report, part by part."""
    if not _on_terminal():
        for text in plain_lines(parts):
            print(text)
        return
    for part in parts:
        for line in _lines(part, stdout().width):
            stdout().print(line, soft_wrap=True)


def plain_lines(parts: Iterable[Part]) -> Iterator[str]:
    """The lines of a report without colours, not folded."""
    for part in parts:
        yield from _plain_lines(part)


def _plain_lines(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield from ("".join(text for text, _ in line) for line in _visible(part).lines(sys.maxsize))
    elif isinstance(part, Command):
        yield from part.lines(sys.maxsize)
    else:
        yield visible(part if isinstance(part, str) else part.plain)


def _visible(part: Table) -> Table:
    head, *rows = (list(map(visible, row)) for row in (part.columns, *part.rows))
    return replace(part, title=visible(part.title), columns=head, rows=rows)


def _lines(part: Part, width: int) -> Iterator[Text]:
    from rich.text import Text

    if isinstance(part, Table):
        yield from (Text.assemble(*line) for line in _visible(part).lines(width))
    elif isinstance(part, Command):
        yield from map(Text, part.lines(width))
    elif isinstance(part, str):
        yield from _folded(Text(visible(part)), width)
    else:
        escaped = visible(part.plain)
        yield from _folded(part if escaped == part.plain else Text(escaped, part.style), width)


def _folded(whole: Text, width: int) -> Iterator[Text]:
    end = 0
    for line in fold(whole.plain, width, hang=HANG):
        words = line.lstrip()
        begin = whole.plain.index(words, end)
        end = begin + len(words)
        yield whole.blank_copy(line[: len(line) - len(words)]) + whole[begin:end] if words else whole


def show_rows(rows: Sequence[Row], columns: Row = ()) -> None:
    """Print a table without frame: fitted to a terminal, elsewhere one line per row."""
    if _on_terminal():
        show([Table("", columns, rows, framed=False)])
        return
    grid = [list(map(visible, row)) for row in (*([columns] if columns else []), *rows)]
    for line in aligned(grid):
        print(line)


def heading(text: str) -> Text:
    """A heading of a report."""
    from rich.text import Text

    return Text(text, style=STRONG)


def show_lines(lines: Iterable[StyledLine]) -> None:
    """Print lines as they come."""
    if not _on_terminal():
        for line in lines:
            print("".join(visible(text) for text, _ in line), flush=True)
        return
    from rich.text import Text

    for line in lines:
        pieces = [(visible(text), style) for text, style in line]
        stdout().print(Text.assemble(*pieces), soft_wrap=True)


def _on_terminal() -> bool:
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def show_markdown(text: str) -> None:
    """Print Markdown: rendered on a terminal, unchanged elsewhere."""
    if not _on_terminal():
        print(text, end="")
        return
    from rich.markdown import Markdown

    stdout().print(Markdown(text))
