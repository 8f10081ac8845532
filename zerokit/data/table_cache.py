"""Stores data files as tables in the cache of `datasets`, found by the content of the files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, config
from datasets.table import MemoryMappedTable

from zerokit.data.content import FileContent, check_unchanged, code_digest, digest_of
from zerokit.data.files import TABLES, FileFormat
from zerokit.data.json_rows import json_texts
from zerokit.data.row_dataset import JSON_COLUMN, RowDataset, RowDecoder
from zerokit.data.rows import read_rows, text_columns
from zerokit.data.typed_files import common_schema, typed_tables

_TABLE, _COLUMNS = "rows.arrow", "columns.json"
_MOST_BYTES = 8 << 20
"""Limit of the rows of JSON to write at once."""
_MOST_ROWS = 500
"""Limit of the rows of strings to write at once."""


def cached_rows(
    files: Sequence[Path], format_: FileFormat, text_unit: str, contents: Mapping[Path, FileContent], where: str
) -> RowDataset:
    """The rows of files, read if the cache does not have them; arguments as of :func:`load_examples`.

    The fingerprint of the table, and so of all that `datasets` caches of it, depends on the content of the
    files.

    Raises:
        DataError: a file is malformed, or was changed while it was read.
    """
    digests = [contents[file].digest for file in files]
    key = digest_of([format_.kind, format_.separator, text_unit, digests, code_digest("data")])
    folder = Path(config.HF_DATASETS_CACHE) / "zerokit" / key
    if folder.exists():
        try:
            return _mapped(folder, key)
        except (OSError, ValueError, pa.ArrowException):  # damaged
            shutil.rmtree(folder)
    unfinished = folder.with_name(f".{key}.{os.urandom(4).hex()}")
    unfinished.mkdir(parents=True)
    try:
        _write(files, format_, text_unit, where, unfinished)
        for file in files:
            check_unchanged(file, contents[file])
        with suppress(OSError):  # another process has made it; what it may have mapped must stay
            unfinished.rename(folder)
        return _mapped(folder, key)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _mapped(folder: Path, key: str) -> RowDataset:
    columns = json.loads((folder / _COLUMNS).read_bytes())
    table = Dataset(MemoryMappedTable.from_file(str(folder / _TABLE)), fingerprint=key)
    if columns is None:
        return RowDataset.of_table(table)
    return RowDataset(table, RowDecoder(tuple(columns), is_json=True))


def _write(files: Sequence[Path], format_: FileFormat, text_unit: str, where: str, folder: Path) -> None:
    keys: dict[str, None] = {}
    tables: Iterator[pa.Table]
    if format_.kind in TABLES:
        schema = common_schema(files, format_, where)
        tables = (table for file in files for table in typed_tables(file, format_, schema))
    elif format_.kind == "json":
        schema = pa.schema({JSON_COLUMN: pa.binary()})
        tables = _json_tables(files, keys)
    else:
        names = list(dict.fromkeys(name for file in files for name in text_columns(file, format_)))
        schema = pa.schema([(name, pa.string()) for name in names])
        tables = _string_tables(files, format_, text_unit, names)
    with (folder / _TABLE).open("xb") as sink:
        with pa.ipc.new_stream(sink, schema) as stream:
            for table in tables:
                stream.write_table(table)
        sink.flush()
        os.fsync(sink.fileno())
    (folder / _COLUMNS).write_text(json.dumps(list(keys) if format_.kind == "json" else None))


def _json_tables(files: Sequence[Path], columns: dict[str, None]) -> Iterator[pa.Table]:
    """The rows of JSON files as text; adds all keys of the rows to `columns`."""
    texts: list[bytes] = []
    size = 0
    for text, row in (item for file in files for item in json_texts(file)):
        columns.update(dict.fromkeys(row))
        texts.append(text.encode())
        size += len(texts[-1])
        if size > _MOST_BYTES:
            yield pa.table({JSON_COLUMN: pa.array(texts, pa.binary())})
            texts, size = [], 0
    yield pa.table({JSON_COLUMN: pa.array(texts, pa.binary())})


def _string_tables(
    files: Sequence[Path], format_: FileFormat, text_unit: str, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of text tables, or of texts, as columns of strings."""
    for file in files:
        rows = read_rows(file, format_, text_unit=text_unit)
        while chunk := [row for _, row in islice(rows, _MOST_ROWS)]:
            cells = {name: [row.get(name) for row in chunk] for name in columns}
            yield pa.table({name: pa.array(values, pa.string()) for name, values in cells.items()})
