"""Makes Arrow tables of text files: rows of JSON as text, and columns of strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import compute
from pyarrow.json import read_json

from zerokit.data.files import FileFormat
from zerokit.data.json_rows import MAX_DEPTH, chunk_rows, is_json_list, list_rows
from zerokit.data.row_dataset import JSON_COLUMN
from zerokit.data.rows import read_rows
from zerokit.data.text_file import line_chunks

_MOST_CHARACTERS = 8 << 20
"""Limit of a table of JSON."""
_SAFE_LENGTH = 4000
"""Bytes of a row that cannot have enough levels to exhaust the stack of Arrow's reader."""
_OTHER_NUMBERS = re.compile(rb"Inf|NaN|[0-9]{300}")
"""Numbers that Arrow's reader accepts and Python's does not."""
_MOST_ROWS = 500
"""Limit of a table of strings."""


def json_tables(files: Iterable[Path], columns: dict[str, None]) -> Iterator[pa.Table]:
    """The rows of JSON files as text; adds all keys of the rows to `columns`. Raises DataError."""
    for file in files:
        if is_json_list(file):
            texts: list[bytes] = []
            size = 0
            for _, text, row in list_rows(file):
                columns.update(dict.fromkeys(row))
                texts.append(text.encode())
                size += len(text)
                if size > _MOST_CHARACTERS:
                    yield _json_table(pa.array(texts, pa.binary()))
                    texts, size = [], 0
            yield _json_table(pa.array(texts, pa.binary()))
            continue
        for first, chunk in line_chunks(file):
            found = _checked_lines(chunk)
            if found is None:
                rows = list(chunk_rows(chunk, file, first))
                found = (
                    pa.array([text.encode() for text, _ in rows], pa.binary()),
                    [name for _, row in rows for name in row],
                )
            columns.update(dict.fromkeys(found[1]))
            yield _json_table(found[0])


def _json_table(texts: pa.Array) -> pa.Table:
    return pa.table({JSON_COLUMN: texts})


def _checked_lines(chunk: bytes) -> tuple[pa.Array, list[str]] | None:
    """The lines and all keys of a chunk, if Arrow finds that each line is a JSON object; None if unsure.

    Arrow's reader is many times as fast as Python's, and as strict except for some numbers and the ends of
    objects.
    """
    lines = chunk.rstrip(b"\r\n")
    separator = b"\r\n" if b"\r\n" in lines[: lines.find(b"\n") + 1] else b"\n"
    texts = pa.array(lines.split(separator), pa.binary())
    is_object = compute.and_(compute.starts_with(texts, b"{"), compute.ends_with(texts, b"}"))
    if not compute.all(is_object).as_py():  # blank, or with spaces around it
        return None
    long = texts.filter(compute.greater(compute.binary_length(texts), _SAFE_LENGTH))
    openings = compute.add(*(compute.count_substring(long, bracket) for bracket in (b"[", b"{")))
    if compute.any(compute.greater(openings, _SAFE_LENGTH // 2)).as_py():
        return None  # Arrow might exhaust the stack
    try:
        table = read_json(pa.BufferReader(lines))
        texts.cast(pa.string())  # whether they are UTF-8
        names = table.column_names
    except (pa.ArrowException, ValueError):
        return None
    has_floats = "double" in str(table.schema)
    may_differ = has_floats and _OTHER_NUMBERS.search(lines) is not None
    is_too_deep = any(_depth(type_) > MAX_DEPTH for type_ in table.schema.types)
    if table.num_rows != len(texts) or is_too_deep or may_differ:
        return None
    return texts, names


def _depth(type_: pa.DataType) -> int:
    """The number of levels of a type."""
    levels, inner = 0, [type_]
    while inner := [each.field(index).type for each in inner for index in range(each.num_fields)]:
        levels += 1
    return levels


def column_names(files: Sequence[Path], format_: FileFormat) -> list[str]:
    """The columns of text tables, or of texts. DataError if a first row is malformed."""
    rows = (row for file in files for _, row in islice(read_rows(file, format_), 1))
    return list(dict.fromkeys(name for row in rows for name in row))


def string_tables(
    files: Iterable[Path], format_: FileFormat, text_unit: str, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of text tables, or of texts, as columns of strings. DataError with file and line."""
    for file in files:
        rows = read_rows(file, format_, text_unit=text_unit)
        while chunk := [row for _, row in islice(rows, _MOST_ROWS)]:
            yield pa.table(
                {name: pa.array([row.get(name) for row in chunk], pa.string()) for name in columns}
            )
