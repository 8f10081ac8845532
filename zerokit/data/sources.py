"""Examples of files and of the Hub.

Files are read once and stored as an Arrow table in the cache of `datasets`. The table is mapped into memory,
so that data may be larger than memory. The cache finds a table by the content of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.content import FileContent, digest_files
from zerokit.data.files import (
    TABLES,
    common_format,
    format_of,
    given_files,
)
from zerokit.data.full_disk import explain_full_disk
from zerokit.data.rows import read_rows
from zerokit.errors import DataError
from zerokit.hub import describe_failure

if TYPE_CHECKING:
    from zerokit.data.json_rows import Rows
    from zerokit.data.row_dataset import RowDataset


@explain_full_disk()
def load_examples(
    source: str | Sequence[str],
    *,
    where: str,
    subset: str | None = None,
    split: str | None = "train",
    text_unit: str = "paragraph",
    contents: Mapping[Path, FileContent] | None = None,
) -> RowDataset:
    """Load a data set.

    Args:
        source: files, patterns of names, folders, a Hub id, or ``builtin:NAME``.
        where: the place of `source` in the user's input, for errors.
        subset: configuration of a Hub data set.
        split: of a Hub data set, or of a folder with files of several; None: all files of
            folders, "train" of others.
        text_unit: what one example of a .txt file is: ``paragraph`` or ``line``.
        contents: of :func:`digest_files`; None reads the files for it.

    Raises:
        DataError: missing, malformed, of mixed or unknown formats, or without a single example.
    """
    from zerokit.data.row_dataset import RowDataset

    sources = [source] if isinstance(source, str) else list(source)
    if files := given_files(sources, where, split):
        from zerokit.data.table_cache import cached_rows

        found = common_format(files, where)
        contents = digest_files(files) if contents is None else contents
        examples = cached_rows(files, found, text_unit, contents, where)
    else:
        examples = RowDataset.of_table(load_hub(sources[0], subset, split or "train", where))
    if len(examples) == 0 or not examples.columns:
        raise no_examples(sources, files, where)
    return examples


def no_examples(sources: Sequence[str], files: Sequence[Path], where: str) -> DataError:
    """The error of sources, or of the files that they stand for, which have no examples."""
    hint = "Give it at least one example"
    if (empty := next((file for file in files if file.stat().st_size == 0), None)) is not None:
        return DataError("the file is empty", where=str(empty), hint=hint)
    return DataError(f"'{', '.join(sources)}' has no examples", where=where, hint=hint)


def place_of(source: str | Sequence[str], row: int, *, where: str, split: str | None = "train") -> str:
    """Where an example was read: file and line, or its number where there are no lines.

    Args:
        source: as of :func:`load_examples`.
        row: its number in what that returned, from 0.
        where: the place of `source` in the user's input.
        split: as of :func:`load_examples`.
    """
    left = row
    for file in given_files(source, where, split):
        for place in _places(file):
            if left == 0:
                return f"{file}{place}"
            left -= 1
    return f"{where}, example {row + 1}"


def _places(file: Path) -> Iterator[str]:
    """What follows the name of a file in the place of each of its examples, in their order."""
    found = format_of(file)
    assert found is not None
    if found.kind in TABLES:
        from zerokit.data.typed_files import num_rows

        return (f", row {number + 1}" for number in range(num_rows(file, found)))
    return (f":{line}" for line, _ in read_rows(file, found))


def read_examples(files: Sequence[Path], where: str, *, skip: int = 0) -> Rows:
    """Read the examples of files one by one; keys that an example lacks are absent.

    Args:
        files: at least one.
        where: their place in the user's input, for errors.
        skip: examples to pass over.

    Raises:
        DataError: a file is malformed.
    """
    found = common_format(list(files), where)
    for file in files:
        if found.kind in TABLES:
            from zerokit.data.typed_files import typed_rows

            skip = yield from typed_rows(file, found, skip=skip)
        else:
            skip = yield from read_rows(file, found, skip=skip)
    return skip


def load_hub(name: str, subset: str | None, split: str, where: str, **options: Any) -> Any:
    """A data set of the Hub, as `datasets.load_dataset` gives it with `options`.

    Raises:
        DataError: it cannot be had.
    """
    import datasets

    try:
        return datasets.load_dataset(name, subset, split=split, **options)
    except Exception as error:
        raise DataError(
            f"'{name}' is no file here, and {describe_failure(error)}",
            where=where,
            hint="Check the name, the split and the network",
        ) from error
