"""One style of tables: fitted to a terminal, or as plain searchable lines.

Words and numbers are never broken. A table that is too wide first gets narrower spacing; then cells are
folded between words; then long words of its first or last column get their own lines. If it is still too
wide, each row is printed as ``column: value`` lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from zerokit.units import format_bytes

Row = Sequence[str]
Cells = Sequence[str | int]
"""Cells of a row: strings, and sizes in bytes."""
StyledLine = Sequence[tuple[str, str]]
"""Pieces of a line: text and style."""

STRONG = "bold"
HANG = 4
"""Indent of folded text."""
_WIDEST = 60
"""Longer cells push only the rest of their own line to the right."""
_NARROWEST = 12
"""Minimum width of a column whose long words get their own lines."""
_PIECE = re.compile(r"(?:\d[\d.,]* (?:[KMGT]iB|B)(?!\w)|\S)+")
"""Unbreakable: a word, or a size with its unit."""


@dataclass(frozen=True)
class Table:
    """A table of strings; the first cell of a row is its name."""

    title: str
    columns: Row
    """Column heads; empty if the rows explain themselves."""
    rows: Sequence[Row]
    framed: bool = True
    """With a margin, and a rule below the heads."""

    def lines(self, width: int) -> Iterator[StyledLine]:
        """The table in `width` columns; only a single longer word exceeds them. Empty without rows."""
        if not self.rows:
            return
        margin = " " * (2 * self.framed)
        if self.title:
            yield [(self.title, STRONG)]
        if self.framed:
            yield []
        yield from self._grid(width, margin) or self._one_by_one(width, margin)
        if self.framed:
            yield []

    def _grid(self, width: int, margin: str) -> list[StyledLine]:
        """Cells below each other, or nothing if too many long words do not fit side by side."""
        grid = [*([self.columns] if self.columns else []), *self.rows]
        columns = list(zip(*grid, strict=True))
        widths = [max(map(_cells, column)) for column in columns]
        least = [max(map(_longest_piece, column)) for column in columns]
        room, gaps, gap = width - 2 * len(margin), len(widths) - 1, 2
        if self.framed and sum(widths) + 3 * gaps <= room:
            gap = 3
        elif sum(least) + 2 * gaps > room >= sum(least) + gaps:
            gap = 1
        room -= gap * gaps
        lone = None
        if sum(least) > room:
            lone = max((0, gaps), key=least.__getitem__)
            left = least[lone] - (sum(least) - room)
            if left < max(_NARROWEST, _longest_piece(grid[0][lone]) * bool(self.columns)):
                return []
            least[lone] = left
        widths = _shrunk(widths, least, room)
        lines: list[StyledLine] = []
        for number, row in enumerate(grid):
            is_head = bool(self.columns) and number == 0
            apart: list[StyledLine] = []
            if lone is not None and _longest_piece(row[lone]) > widths[lone]:
                indent, style = (margin, STRONG * self.framed) if lone == 0 else (margin + " " * HANG, "")
                apart = [[(line, style)] for line in fold(indent + row[lone], width, hang=HANG)]
                row = [*row[:lone], "", *row[lone + 1 :]]
            lines += apart if lone == 0 else []
            for texts in _side_by_side([fold(cell, held) for cell, held in zip(row, widths, strict=True)]):
                first, *rest = (text + " " * (held - _cells(text)) for text, held in zip(texts, widths, strict=True))
                others = "".join(" " * gap + text for text in rest).rstrip()
                is_bold = self.framed
                lines.append([(margin + first, STRONG * is_bold), (others, STRONG * (is_bold and is_head))])
            lines += apart if lone != 0 else []
            if is_head and self.framed:
                lines.append([(" " + "─" * (sum(widths) + gap * (len(widths) - 1) + 2), "")])
        return lines

    def _one_by_one(self, width: int, margin: str) -> Iterator[StyledLine]:
        names = self.columns or [""] * len(self.rows[0])
        for row in self.rows:
            items = [f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=True) if cell]
            lines = [margin]
            for item in items:
                if lines[-1].strip() and _cells(lines[-1]) + 3 + _cells(item) > width:
                    lines.append(margin + " " * HANG)
                between = "   " if lines[-1].strip() else ""
                lines[-1:] = fold(lines[-1] + between + item, width, hang=HANG)
            name = len(margin + items[0]) if items else 0
            yield [(lines[0][:name], STRONG), (lines[0][name:], "")]
            yield from ([(line, "")] for line in lines[1:])


def table(title: str, columns: Row, rows: Iterable[Cells]) -> Table:
    """Make a table; the first column is the row's name, and integers are sizes in bytes."""
    written = [[cell if isinstance(cell, str) else format_bytes(cell) for cell in row] for row in rows]
    return Table(title, columns, written)


def fold(text: str, width: int, *, hang: int = 0) -> list[str]:
    """Fold `text` into lines of at most `width` columns, between words.

    Args:
        text: without line breaks.
        width: a longer word gets its own line.
        hang: indent of all lines but the first.
    """
    indent = " " * (len(text) - len(text.lstrip()) + hang)
    lines = [""]
    end = 0
    for piece in _PIECE.finditer(text):
        longer = lines[-1] + text[end : piece.end()]
        end = piece.end()
        if lines[-1].strip() and _cells(longer) > width:
            longer = indent + piece[0]
            lines.append("")
        lines[-1] = longer
    return lines


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """Rows as searchable lines: aligned cells, never folded."""
    if not rows:
        return
    widths = [
        max((len(cell) for cell in column if len(cell) <= _WIDEST), default=0)
        for column in zip(*(row[:-1] for row in rows), strict=True)
    ]
    for *cells, last in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        yield "  ".join([*padded, last]).rstrip()


def _cells(text: str) -> int:
    """Columns that a string takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _longest_piece(text: str) -> int:
    indent = len(text) - len(text.lstrip())
    return indent + max(map(_cells, _PIECE.findall(text)), default=0)


def _shrunk(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Narrow the widest foldable columns until all fit."""
    found = [max(low, min(width, room)) for width, low in zip(widths, least, strict=True)]
    while sum(found) > room:
        widest = max((place for place in range(len(found)) if found[place] > least[place]), key=found.__getitem__)
        found[widest] -= 1
    return found


def _side_by_side(cells: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    for number in range(max(map(len, cells))):
        yield [cell[number] if number < len(cell) else "" for cell in cells]
