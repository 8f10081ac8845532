"""Rows of a data set, each with exactly the keys and values of its source.

Arrow gives all values of a column one type and all objects in it the same keys. So rows of JSON are stored as
their text, and objects of typed files lose the keys that are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features
from datasets.table import InMemoryTable
from pydantic_core import from_json

from zerokit.data.json_rows import Row

JSON_COLUMN = "json"
"""The column with the text of each row."""
_BATCH = 1000
_NESTED = (dict, list)


@dataclass(frozen=True)
class RowDecoder:
    """Decodes batches of a table into rows with all columns; None if a row lacks one."""

    columns: tuple[str, ...]
    is_json: bool
    """Whether rows are stored as text."""
    with_objects: tuple[str, ...] = ()
    """Columns of a typed table that have objects."""

    @classmethod
    def of_features(cls, features: Features) -> RowDecoder:
        names = tuple(field.name for field in features.arrow_schema if _has_objects(field.type))
        return cls(tuple(features), is_json=False, with_objects=names)

    def __call__(self, batch: Mapping[str, list[Any]]) -> list[Row]:
        """The rows of a batch of the table's columns."""
        if self.is_json:
            absent = dict.fromkeys(self.columns)
            # Twice as fast as Python's reader.
            return [absent | from_json(text, cache_strings="keys") for text in batch[JSON_COLUMN]]
        columns = [
            [without_nulls(value) for value in batch[name]] if name in self.with_objects else batch[name]
            for name in self.columns
        ]
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]

    def row(self, stored: Row) -> Row:
        """One row of the table."""
        (decoded,) = self({name: [value] for name, value in stored.items()})
        return decoded


@dataclass(frozen=True)
class RowDataset:
    """Rows of a table that may be larger than memory."""

    table: Dataset
    decode: RowDecoder

    @classmethod
    def of_table(cls, table: Dataset) -> RowDataset:
        """The rows of a typed table."""
        return cls(table, RowDecoder.of_features(table.features))

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> RowDataset:
        """Rows in memory; values that JSON lacks become objects, which are no texts or labels."""
        texts: list[bytes] = []
        names: Row = {}
        for row in rows:
            names |= row
            texts.append(json.dumps(row, ensure_ascii=False, default=_as_object).encode())
        table = pa.table({JSON_COLUMN: pa.array(texts, pa.binary())})
        return cls(Dataset(InMemoryTable(table)), RowDecoder(tuple(names), is_json=True))

    @property
    def columns(self) -> list[str]:
        """The keys of all rows."""
        return list(self.decode.columns)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return self.decode.row(self.table[index])

    def __iter__(self) -> Iterator[Row]:
        for batch in self.table.iter(batch_size=_BATCH):
            yield from self.decode(batch)

    def column(self, name: str) -> Iterator[Any]:
        """The values of a column, in order."""
        selected = self
        if not self.decode.is_json:
            selected = self.of_table(self.table.select_columns([name]))
        return (row[name] for row in selected)

    def first(self, count: int) -> RowDataset:
        """At most the first `count` rows."""
        return replace(self, table=self.table.select(range(min(count, len(self)))))

    def split(self, size: int, seed: int) -> tuple[Part, Part]:
        """All rows but `size`, and the other `size`; both shuffled by a seed."""
        numbers = Dataset.from_dict({"row": range(len(self))})
        parts, rows = (each.train_test_split(test_size=size, seed=seed) for each in (self.table, numbers))
        train, test = ((replace(self, table=parts[name]), rows[name]["row"]) for name in ("train", "test"))
        return train, test


def _as_object(value: Any) -> dict[str, str]:
    return {type(value).__name__: str(value)}


Part = tuple[RowDataset, Sequence[int]]
"""Some rows of a data set, and the number of each in it, from 0."""


def _has_objects(type_: pa.DataType) -> bool:
    is_list = any(
        is_kind(type_) for is_kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )
    return pa.types.is_struct(type_) or (is_list and _has_objects(type_.value_type))


def without_nulls(value: Any) -> Any:
    """A value without keys of objects that are null."""
    if isinstance(value, dict):
        return {
            key: without_nulls(each) if isinstance(each, _NESTED) else each
            for key, each in value.items()
            if each is not None
        }
    if isinstance(value, list):
        return [without_nulls(each) if isinstance(each, _NESTED) else each for each in value]
    return value
