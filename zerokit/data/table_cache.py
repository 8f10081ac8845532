"""Stores data files as tables in the cache of `datasets`, found by the content of the files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from datasets import Dataset, config
from datasets.table import MemoryMappedTable

from zerokit.data.content import FileContent, check_unchanged, code_digest, digest_of
from zerokit.data.files import TABLES, FileFormat
from zerokit.data.row_dataset import JSON_COLUMN, RowDataset, RowDecoder
from zerokit.data.text_tables import column_names, json_tables, string_tables
from zerokit.data.typed_files import common_schema, typed_tables

_TABLE, _COLUMNS = "rows.arrow", "columns.json"


def cached_rows(
    files: Sequence[Path],
    format_: FileFormat,
    text_unit: str,
    contents: Mapping[Path, FileContent],
    where: str,
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
        tables = json_tables(files, keys)
    else:
        names = column_names(files, format_)
        schema = pa.schema([(name, pa.string()) for name in names])
        tables = string_tables(files, format_, text_unit, names)
    with (folder / _TABLE).open("xb") as sink:
        with pa.ipc.new_stream(sink, schema) as stream:
            for table in tables:
                stream.write_table(table)
        sink.flush()
        os.fsync(sink.fileno())
    (folder / _COLUMNS).write_text(json.dumps(list(keys) if format_.kind == "json" else None))
