"""Examples that are read one by one and kept nowhere, of files and data sets too large for that.

They come through `datasets` as an ``IterableDataset``, in the order in which they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.files import common_format, given_files, is_builtin
from zerokit.data.sources import (
    is_json_list,
    load_examples,
    load_hub,
    locate_json_fault,
    reading_options,
)
from zerokit.errors import DataError, ZerokitError

if TYPE_CHECKING:
    from datasets import IterableDataset


class ExampleStream:
    """The examples of a data set, from the first or from where an earlier reading was.

    Args:
        source: files, patterns of names, folders, a Hub id, or ``builtin:NAME``.
        where: the place of `source` in the user's input, for errors.
        subset: configuration of a Hub data set.
        split: of a Hub or built-in data set, or of a folder with files of several.

    Raises:
        DataError: missing, malformed, of mixed or unknown formats, or without a single example.
    """

    def __init__(
        self, source: str | Sequence[str], *, where: str, subset: str | None = None, split: str = "train"
    ) -> None:
        self._where = where
        sources = [source] if isinstance(source, str) else list(source)
        self._name = ", ".join(sources)
        self._files: list[Path] = []
        self._dataset = self._open(sources, subset, split)
        self._beginning = self._dataset.state_dict()
        columns = self._dataset.column_names
        if columns is None:  # of text and tables in CSV, which say so themselves
            columns = list(next(self.read(), {}))
        if not columns:
            raise DataError(f"'{self._name}' has no examples", where=where, hint="Give it at least one")
        self.columns: list[str] = columns

    def read(self, state: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The examples, in their order; one reading at a time.

        Args:
            state: what :meth:`state` said after the example before the first one; None begins.

        Raises:
            DataError: what stands there cannot be read, with its file and line where that is known.
        """
        self._dataset.load_state_dict(self._beginning if state is None else state)
        try:
            yield from self._dataset
        except Exception as error:
            # datasets wraps whatever parsers and the network raise, each in its own way.
            raise self._problem(error) from error

    def state(self) -> dict[str, Any]:
        """Where the reading is, as plain data."""
        return dict(self._dataset.state_dict())

    def _open(self, sources: list[str], subset: str | None, split: str) -> IterableDataset:
        if len(sources) == 1 and is_builtin(sources[0]):
            return load_examples(sources[0], where=self._where, split=split).to_iterable_dataset()
        self._files = given_files(sources, self._where, split)
        if not self._files:
            return load_hub(sources[0], subset, split, self._where, streaming=True)
        found = common_format(self._files, self._where)
        if found.builder == "json":
            self._refuse_lists()
        import datasets

        names = [str(file) for file in self._files]
        options = {"data_files": names, "split": "train", "streaming": True, **reading_options(found)}
        try:
            return datasets.load_dataset(found.builder, **options)
        except Exception as error:  # as above
            raise self._problem(error) from error

    def _refuse_lists(self) -> None:
        """Raise DataError for a file that is one JSON list, which would be read as a whole."""
        for file in self._files:
            if is_json_list(file):
                raise DataError(
                    "the file is one JSON list, which cannot be streamed",
                    where=str(file),
                    hint="Write a line for each example (JSON lines), or remove data.streaming",
                )

    def _problem(self, error: Exception) -> ZerokitError:
        """What a person is told of it."""
        if isinstance(error, ZerokitError):
            return error
        try:
            if self._files and common_format(self._files, self._where).builder == "json":
                locate_json_fault(self._files)
        except DataError as found:
            return found
        cause = error.__cause__ or error
        return DataError(
            f"cannot read '{self._name}': {cause}",
            where=self._where,
            hint="Mend the file" if self._files else "Check the network, and resume",
        )
