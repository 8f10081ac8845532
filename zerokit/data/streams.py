"""Streams examples, for files and data sets that are too large to be stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from zerokit.data.content import sampled_digest
from zerokit.data.files import TABLES, common_format, find_files
from zerokit.data.json_rows import Row
from zerokit.data.sources import load_hub, no_examples, read_examples
from zerokit.errors import DataError, ZerokitError

if TYPE_CHECKING:
    from datasets import IterableDataset

_FIRST_ROWS = 100
"""Rows of JSON whose keys are the columns."""


class ExampleStream:
    """The examples of a data set, read one by one; arguments and errors as of ``load_examples``."""

    def __init__(
        self, source: str | Sequence[str], *, where: str, subset: str | None = None, split: str = "train"
    ) -> None:
        self._where = where
        sources = [source] if isinstance(source, str) else list(source)
        self._name = ", ".join(sources)
        self._files = find_files(sources, where, split)
        self._hub: IterableDataset | None = None
        if not self._files:
            self._hub = load_hub(sources[0], subset, split, where, streaming=True)
            self._beginning = self._hub.state_dict()
        self.columns: list[str] = self._find_columns()
        if not self.columns:
            raise no_examples(sources, self._files, where)

    def read(self, skip: int = 0, state: dict[str, Any] | None = None) -> Iterator[Row]:
        """The examples in order; only one reading at a time. DataError if an example cannot be read.

        Args:
            state: result of :meth:`state` after that many examples.
        """
        if self._files:
            absent = dict.fromkeys(self.columns)
            for _, row in read_examples(self._files, self._where, skip=skip):
                yield absent | row
        else:
            yield from self._read_hub(state)

    def state(self) -> dict[str, Any] | None:
        """Position in a Hub data set, as plain data; None for files."""
        return None if self._hub is None else dict(self._hub.state_dict())

    def content(self) -> str | None:
        """A digest of the files (:func:`sampled_digest`); None for the Hub."""
        return sampled_digest(self._files) if self._files else None

    def _find_columns(self) -> list[str]:
        if self._hub is not None:
            columns = self._hub.column_names
            return list(next(self._read_hub(None), {}) if columns is None else columns)
        found = common_format(self._files, self._where)
        if found.kind in TABLES:
            from zerokit.data.typed_files import file_schema

            return list(file_schema(self._files[0], found).names)
        keys: Row = {}
        for _, row in islice(read_examples(self._files, self._where), _FIRST_ROWS):
            keys |= row
        return list(keys)

    def _read_hub(self, state: dict[str, Any] | None) -> Iterator[Row]:
        assert self._hub is not None
        from zerokit.data.row_dataset import RowDecoder

        features = self._hub.features
        known = None if features is None else RowDecoder.of_features(features)
        self._hub.load_state_dict(self._beginning if state is None else state)
        try:
            for row in self._hub:
                names = tuple(row)
                decode = known or RowDecoder(names, is_json=False, with_objects=names)
                yield decode.row(row)
        except ZerokitError:
            raise
        except Exception as error:
            # datasets wraps whatever parsers and the network raise, each in its own way.
            raise DataError(
                f"cannot read '{self._name}': {error.__cause__ or error}",
                where=self._where,
                hint="Check the network, and resume",
            ) from error
