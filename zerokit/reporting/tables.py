"""The one style of tables: framed for a terminal, or as plain lines that can be searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from zerokit.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[str]
Cells = Sequence[str | int]
"""Of one row: texts, and sizes in bytes."""

_WIDEST = 60
"""Cells that are longer push the rest of their own line to the right, not that of all lines."""


def table(title: str, columns: Row, rows: Iterable[Cells]) -> Table:
    """A table for a terminal, folded to its width; the first column is the row's name.

    A cell that is an int is a size in bytes, and is written as one.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        result.add_column(column, style="bold" if index == 0 else "", overflow="fold")
    for row in rows:
        result.add_row(*(Text(cell if isinstance(cell, str) else format_bytes(cell)) for cell in row))
    return result


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as lines that can be searched: cells one below the other, never folded, the last as it is."""
    if not rows:
        return
    widths = [
        max((len(cell) for cell in column if len(cell) <= _WIDEST), default=0)
        for column in zip(*(row[:-1] for row in rows), strict=True)
    ]
    for *cells, last in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        yield "  ".join([*padded, last]).rstrip()
