"""Printing on stdout for people: reports of tables and lines, lines in colours, Markdown.

A report is folded between words on a terminal. Findings, and all that goes elsewhere, are never folded, so
that they can be searched. Where stdout is no terminal nothing is coloured, and lines cost no import of rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from zerokit.console import stdout
from zerokit.reporting.tables import HANG, STRONG, Row, StyledLine, Table, aligned, fold

if TYPE_CHECKING:
    from rich.text import Text

    Part: TypeAlias = "Table | Text | Command | str"
    """Of a report."""

GOOD, DOUBTFUL, BAD, REMARK = "green", "yellow", "bold red", "cyan"
"""Styles of verdicts and of findings."""


@dataclass(frozen=True)
class Command:
    """A line of a report that is to be typed in a shell; a fold of it is typed just so."""

    words: Sequence[str]
    """As a shell reads them, quoted."""

    def lines(self, width: int) -> list[str]:
        """The line, broken by backslashes where it is longer than `width` columns."""
        lines = ["  " + self.words[0]]
        for word in self.words[1:]:
            if len(f"{lines[-1]} {word} \\") > width:
                lines[-1] += " \\"
                lines.append(" " * (2 + HANG) + word)
            else:
                lines[-1] += f" {word}"
        return lines


def show(parts: Iterable[Part]) -> None:
    """Print a report, part by part."""
    for part in parts:
        if isinstance(part, str) and not _on_terminal():
            print(part)
            continue
        for line in _lines(part):
            stdout().print(line, soft_wrap=True)


def _lines(part: Part) -> Iterator[Text]:
    from rich.text import Text

    width = stdout().width if _on_terminal() else sys.maxsize
    if isinstance(part, Table):
        yield from (Text.assemble(*line) for line in part.lines(width))
    elif isinstance(part, Command):
        yield from map(Text, part.lines(width))
    else:
        yield from _folded(Text(part) if isinstance(part, str) else part, width)


def _folded(text: Text, width: int) -> Iterator[Text]:
    for whole in text.split("\n", allow_blank=True):
        end = 0
        for line in fold(whole.plain, width, hang=HANG):
            words = line.lstrip()
            begin = whole.plain.index(words, end)
            end = begin + len(words)
            yield whole.blank_copy(line[: len(line) - len(words)]) + whole[begin:end] if words else whole


def show_rows(rows: Sequence[Row], columns: Row = ()) -> None:
    """Print a table without a frame: set into a terminal, and elsewhere one line for each row."""
    if _on_terminal():
        show([Table("", columns, rows, framed=False)])
        return
    for line in aligned([*([columns] if columns else []), *rows]):
        print(line)


def heading(text: str) -> Text:
    """A line of a report that stands above others."""
    from rich.text import Text

    return Text(text, style=STRONG)


def show_lines(lines: Iterable[StyledLine]) -> None:
    """Print lines, each when it comes."""
    if not _on_terminal():
        for line in lines:
            print("".join(text for text, _ in line), flush=True)
        return
    from rich.text import Text

    for line in lines:
        stdout().print(Text.assemble(*line), soft_wrap=True)


def _on_terminal() -> bool:
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def show_markdown(text: str) -> None:
    """Print Markdown: laid out on a terminal, as it is elsewhere."""
    if not _on_terminal():
        print(text, end="")
        return
    from rich.markdown import Markdown

    stdout().print(Markdown(text))
