"""Reads rows of text files exactly as written: a string stays a string, whatever it looks like."""

from __future__ import annotations

import csv
import sys
from itertools import zip_longest
from pathlib import Path

from zerokit.data.files import FileFormat, opened_text
from zerokit.data.json_rows import Rows, json_rows
from zerokit.errors import DataError

_CHUNK = 1 << 20
"""Characters to read at once."""


def read_rows(file: Path, format_: FileFormat, *, text_unit: str = "paragraph", skip: int = 0) -> Rows:
    """Read the rows of a text file, which may be compressed, without the first `skip`.

    Args:
        text_unit: a row of plain text: ``paragraph`` or ``line``.

    Raises:
        DataError: the file is malformed, with file and line.
    """
    if format_.kind == "json":
        return json_rows(file, skip=skip)
    if format_.kind == "csv":
        return _table_rows(file, format_, skip)
    return _lines(file, skip) if text_unit == "line" else _paragraphs(file, skip)


def text_columns(file: Path, format_: FileFormat) -> list[str]:
    """The columns of a text table, which may have no rows, or of texts.

    Raises:
        DataError: the file is malformed, with file and line.
    """
    if format_.kind != "csv":
        return ["text"]
    return next((list(row) for _, row in _table_rows(file, format_, 0, names_first=True)), [])


def _table_rows(file: Path, format_: FileFormat, skip: int, *, names_first: bool = False) -> Rows:
    with opened_text(file, "") as text:
        csv.field_size_limit(sys.maxsize)
        reader = csv.reader(text, delimiter=format_.separator or ",", strict=True)
        names: list[str] = []
        start = 1
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise DataError(
                    f"the table cannot be read: {error}",
                    where=f"{file}:{start}",
                    hint='Put a cell with quotes in quotes, and double those within: "a ""b"" c"',
                ) from None
            if cells is None:
                return skip
            if len(cells) > len(names) > 0:
                raise DataError(
                    f"the row has {len(cells)} cells, but the first row names {len(names)} columns",
                    where=f"{file}:{start}",
                    hint="Put cells with separators in quotes",
                )
            if cells and not names:
                names = _column_names(cells, f"{file}:{start}")
                if names_first:
                    yield start, dict.fromkeys(names)
            elif cells and skip:
                skip -= 1
            elif cells:  # else a blank line
                yield start, dict(zip_longest(names, cells))
            start = reader.line_num + 1


def _column_names(row: list[str], where: str) -> list[str]:
    names = [name or f"Unnamed: {number}" for number, name in enumerate(row)]  # as pandas names its index
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise DataError(f"two columns have the name '{twice}'", where=where, hint="Rename or remove one")
    return names


def _lines(file: Path, skip: int) -> Rows:
    with opened_text(file, None) as lines:
        for number, line in enumerate(lines, start=1):
            if skip:
                skip -= 1
            else:
                yield number, {"text": line.removesuffix("\n")}
    return skip


def _paragraphs(file: Path, skip: int) -> Rows:
    with opened_text(file, None) as content:
        line, rest, is_all = 1, "", False
        while not is_all:
            chunk = content.read(max(_CHUNK, len(rest)))
            is_all = not chunk
            *parts, rest = [rest] if is_all else (rest + chunk).split("\n\n")
            for part in [*parts, rest] if is_all else parts:
                if part and skip:
                    skip -= 1
                elif part:
                    yield line + len(part) - len(part.lstrip("\n")), {"text": part}
                line += part.count("\n") + 2
    return skip
