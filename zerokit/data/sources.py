"""Loads examples of files and of the Hub.

Files are read once and stored as an Arrow table in the cache of `datasets`, which is mapped into memory, so
data may be larger than memory. The cache finds a table by the content of the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.content import FileContent, digest_files
from zerokit.data.files import TABLES, common_format, find_files, format_of
from zerokit.data.full_disk import report_full_disk
from zerokit.data.json_rows import Rows
from zerokit.data.rows import read_rows
from zerokit.errors import DataError
from zerokit.hub import describe_failure

if TYPE_CHECKING:
    from zerokit.data.row_dataset import RowDataset


@report_full_disk()
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
        source: files, patterns, folders, a Hub id, or ``builtin:NAME``.
        subset: configuration of a Hub data set.
        split: of a Hub data set, or of a folder with files of several; None: all files of folders, else
            "train".
        text_unit: an example of a .txt file: ``paragraph`` or ``line``.
        contents: from :func:`digest_files`; None computes them.

    Raises:
        DataError: missing, malformed, of mixed or unknown formats, or empty.
    """
    from zerokit.data.row_dataset import RowDataset

    sources = [source] if isinstance(source, str) else list(source)
    if files := find_files(sources, where, split):
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
    """The error for sources, or their files, without examples."""
    hint = "Give it at least one example"
    if (empty := next((file for file in files if file.stat().st_size == 0), None)) is not None:
        return DataError("the file is empty", where=empty, hint=hint)
    return DataError(f"'{', '.join(sources)}' has no examples", where=where, hint=hint)


def place_of(source: str | Sequence[str], row: int, *, where: str, split: str | None = "train") -> str:
    """File and line of an example, or its number if there are no lines; arguments as of
    :func:`load_examples`.

    Args:
        row: number of the example, from 0.
    """
    left = row
    for file in find_files(source, where, split):
        for place in _places(file):
            if left == 0:
                return f"{file}{place}"
            left -= 1
    return f"{where}, example {row + 1}"


def _places(file: Path) -> Iterator[str]:
    """Suffixes of a file's name that give the place of each of its examples, in order."""
    found = format_of(file)
    assert found is not None
    if found.kind in TABLES:
        from zerokit.data.typed_files import num_rows

        return (f", row {number + 1}" for number in range(num_rows(file, found)))
    return (f":{line}" for line, _ in read_rows(file, found))


def read_examples(files: Sequence[Path], where: str, *, skip: int = 0) -> Rows:
    """Read the examples of files one by one, without the first `skip`. Raises DataError."""
    found = common_format(list(files), where)
    for file in files:
        if found.kind in TABLES:
            from zerokit.data.typed_files import typed_rows

            skip = yield from typed_rows(file, found, skip=skip)
        else:
            skip = yield from read_rows(file, found, skip=skip)
    return skip


def load_hub(name: str, subset: str | None, split: str, where: str, **options: Any) -> Any:
    """A data set of the Hub from `datasets.load_dataset`; DataError if that fails."""
    import datasets

    try:
        return datasets.load_dataset(name, subset, split=split, **options)
    except Exception as error:
        raise DataError(
            f"'{name}' is no file here, and {describe_failure(error)}",
            where=where,
            hint="Check the name, the split and the network",
        ) from error
