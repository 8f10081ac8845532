"""Reads files with types: parquet and arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from datasets import ClassLabel, Features
from datasets.table import table_cast
from pyarrow.parquet import ParquetFile, read_metadata

from zerokit.data.files import FileFormat
from zerokit.data.json_rows import Rows
from zerokit.data.row_dataset import RowDecoder
from zerokit.errors import DataError

_BATCH = 1000
"""Rows to read at once."""

Part = tuple[int, Callable[[], Iterable[pa.RecordBatch]]]
"""Number of rows of a part of a file, and a function that reads them."""


def common_schema(files: Sequence[Path], format_: FileFormat, where: str) -> pa.Schema:
    """The columns of all files, with types that keep all values; DataError if types cannot be unified."""
    first = file_schema(files[0], format_)
    features = Features.from_arrow_schema(first)
    types = first.remove_metadata()
    for file in files[1:]:
        schema = file_schema(file, format_)
        own = Features.from_arrow_schema(schema)
        for name in own.keys() & features.keys():
            if own[name] != features[name] and any(isinstance(each[name], ClassLabel) for each in (own, features)):
                raise _differ(files[0], file, where, f"'{name}' has other classes")
        try:
            types = pa.unify_schemas([types, schema.remove_metadata()], promote_options="permissive")
        except pa.ArrowException as error:
            raise _differ(files[0], file, where, str(error)) from None
        features = Features({**own, **features})
    found = Features.from_arrow_schema(types)
    own = features.arrow_schema
    kept = {name: features[name] for name in found if own.field(name).type == types.field(name).type}
    return Features({**found, **kept}).arrow_schema


def _differ(first: Path, second: Path, where: str, how: str) -> DataError:
    return DataError(
        f"{first} and {second} have columns of different types: {how}", where=where, hint="Convert them to one type"
    )


def file_schema(file: Path, format_: FileFormat) -> pa.Schema:
    """The columns of a file. Raises DataError."""
    with _report_read_errors(file), file.open("rb") as content:
        schema = ParquetFile(content).schema_arrow if format_.kind == "parquet" else _opened(content).schema
        return Features.from_arrow_schema(schema).arrow_schema


def typed_tables(file: Path, format_: FileFormat, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file, with the columns of `schema`. Raises DataError."""
    for _, read in _parts(file, format_):
        with _report_read_errors(file):
            for table in map(_checked, read()):
                for field in schema:
                    if field.name not in table.column_names:
                        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
                yield table_cast(table, schema)


def typed_rows(file: Path, format_: FileFormat, *, skip: int = 0) -> Rows:
    """Read the rows of a file, without the first `skip`, each with its number from 1. Raises DataError."""
    features = Features.from_arrow_schema(file_schema(file, format_))
    decode = RowDecoder.of_features(features)
    number = 0
    for size, read in _parts(file, format_):
        if skip >= size:
            skip -= size
            number += size
            continue
        with _report_read_errors(file):
            for table in map(_checked, read()):
                for row in decode(features.decode_batch(table.to_pydict())):
                    number += 1
                    if skip:
                        skip -= 1
                    else:
                        yield number, row
    return skip


def num_rows(file: Path, format_: FileFormat) -> int:
    """The number of rows of a file. Raises DataError."""
    if format_.kind == "parquet":
        with _report_read_errors(file):
            return int(read_metadata(file).num_rows)
    return sum(size for size, _ in _parts(file, format_))


def _checked(batch: pa.RecordBatch) -> pa.Table:
    """The table of a batch, with dictionary columns decoded."""
    batch.validate(full=True)  # whether strings are UTF-8, too
    table = pa.Table.from_batches([batch])
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table


def _parts(file: Path, format_: FileFormat) -> Iterator[Part]:
    with _report_read_errors(file), file.open("rb") as content:
        if format_.kind == "parquet":
            parquet = ParquetFile(content)
            for group in range(parquet.num_row_groups):
                size = parquet.metadata.row_group(group).num_rows
                yield size, partial(parquet.iter_batches, _BATCH, row_groups=[group])
            return
        arrow = _opened(content)
        batches: Iterable[pa.RecordBatch] = arrow
        if isinstance(arrow, pa.ipc.RecordBatchFileReader):
            batches = map(arrow.get_batch, range(arrow.num_record_batches))
        for batch in batches:
            yield batch.num_rows, partial(_split, batch)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _BATCH) for start in range(0, batch.num_rows, _BATCH))


def _opened(content: IO[bytes]) -> Any:
    """Read a stream, as `datasets` writes, or a file with an index, as polars and feather write."""
    try:
        return pa.ipc.open_stream(content)
    except pa.ArrowInvalid:
        return pa.ipc.open_file(content)


@contextmanager
def _report_read_errors(file: Path) -> Iterator[None]:
    """Turn errors of reading `file` in this context into DataErrors with its name."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"the file cannot be read: {error}",
            where=file,
            hint="Check how it was written; it needs at least one example",
        ) from error
