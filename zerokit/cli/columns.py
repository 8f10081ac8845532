"""Rows as lines of plain text: one line each, so that they can be searched, and the terminal wraps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_WIDEST = 60
"""Cells that are longer push the rest of their own line to the right, not that of all lines."""


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows with their cells one below the other, two spaces apart; the last cell as it is."""
    if not rows:
        return
    widths = [
        max((len(cell) for cell in column if len(cell) <= _WIDEST), default=0)
        for column in zip(*(row[:-1] for row in rows), strict=True)
    ]
    for *cells, last in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        yield "  ".join([*padded, last]).rstrip()
