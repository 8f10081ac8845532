"""Examples from where users keep them: local files, a Hub data set, or text that is on every machine.

Everything is read through the `datasets` library, which memory-maps what it reads, so that a data set
may be larger than memory.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.files import (
    BUILTIN,
    FileFormat,
    common_format,
    faults_named,
    format_of,
    given_files,
    is_builtin,
    opened,
)
from zerokit.data.full_disk import full_disk_told
from zerokit.documents import parse_json
from zerokit.errors import DataError, DocumentError, did_you_mean
from zerokit.hub import not_given

if TYPE_CHECKING:
    from datasets import Dataset

_HELD_OUT = ("held_out", "validation", "test")
"""What the other split of built-in data may be called."""


@full_disk_told()
def load_examples(
    source: str | Sequence[str],
    *,
    where: str,
    subset: str | None = None,
    split: str | None = "train",
    text_unit: str = "paragraph",
) -> Dataset:
    """Load a data set.

    Args:
        source: files, patterns of names, folders, a Hub id, or ``builtin:NAME``.
        where: the place of `source` in the user's input, for errors.
        subset: configuration of a Hub data set.
        split: of a Hub or built-in data set, or of a folder with files of several; None: all files of
            folders, "train" of others.
        text_unit: what one example of a .txt file is: ``paragraph`` or ``line``.

    Raises:
        DataError: missing, malformed, of mixed or unknown formats, or without a single example.
    """
    if isinstance(source, str) and is_builtin(source):
        return _load_builtin(source, split or "train", where)
    sources = [source] if isinstance(source, str) else list(source)
    if files := given_files(sources, where, split):
        examples = _load_files(files, where, text_unit)
    else:
        examples = load_hub(sources[0], subset, split or "train", where)
    if len(examples) == 0:
        raise DataError(f"'{', '.join(sources)}' has no examples", where=where, hint="Give it at least one")
    return examples


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
    """What follows the name of a file, to say where each of its examples stands, in their order."""
    found = format_of(file)
    assert found is not None
    if found.builder in ("parquet", "arrow"):
        for number in range(_num_rows(file, found.builder)):
            yield f", row {number + 1}"
        return
    newline = "" if found.builder == "csv" else "\n"
    with opened(file, "rt", encoding="utf-8-sig", newline=newline) as lines:
        if found.builder == "csv":
            rows = csv.reader(lines, delimiter=found.separator or ",")
            next(rows, None)  # the names of the columns
            end = rows.line_num
            for row in rows:
                if row:
                    yield f":{end + 1}"
                end = rows.line_num
        elif found.builder == "json" and (first := lines.read(1)) == "[":
            document = parse_json(first + lines.read(), str(file))
            for number in range(len(document.data)):
                yield f":{document.line((number,))}"
        elif found.builder == "json":
            start = first if first == "\n" else first + lines.readline()
            for number, line in enumerate(chain([start], lines), start=1):
                if line.strip():
                    yield f":{number}"


def _num_rows(file: Path, builder: str) -> int:
    """Of a table that is no text."""
    if builder == "parquet":
        from pyarrow.parquet import read_metadata

        return int(read_metadata(file).num_rows)
    import pyarrow as pa

    with pa.memory_map(str(file)) as content:
        try:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(content))
        except pa.ArrowInvalid:  # it is no stream, but a file with an index, as polars and feather write them
            content.seek(0)
            table = pa.ipc.open_file(content)
            return sum(table.get_batch(number).num_rows for number in range(table.num_record_batches))


def _load_builtin(source: str, split: str, where: str) -> Dataset:
    from datasets import Dataset

    from zerokit.data import python_reference

    name = source.removeprefix(BUILTIN)
    if split not in ("train", *_HELD_OUT):
        raise DataError(
            f"'{source}' has no split '{split}'", where=where, hint=did_you_mean(split, ["train", "held_out"])
        )
    if name == "python-reference":
        corpus = python_reference.corpus()
        return Dataset.from_dict({"text": corpus.train if split == "train" else corpus.held_out})
    if name == "python-questions":
        questions = python_reference.questions()
        return Dataset.from_list(questions.train if split == "train" else questions.held_out)
    raise DataError(
        f"no built-in data set '{name}'",
        where=where,
        hint=did_you_mean(name, ["python-reference", "python-questions"]),
    )


def _load_files(files: list[Path], where: str, text_unit: str) -> Dataset:
    import datasets

    found = common_format(files, where)
    options = reading_options(found, text_unit)
    try:
        examples = datasets.load_dataset(
            found.builder, data_files=[str(file) for file in files], split="train", **options
        )
        if found.builder == "json":
            examples.data.table.validate(full=True)  # its reader lets through what is not UTF-8
        return examples
    except Exception as error:
        # datasets wraps whatever the parsers below it raise, each in its own way.
        if found.builder == "json":
            locate_json_fault(files)
        cause = error.__cause__ or error
        raise DataError(
            f"cannot read {', '.join(str(file) for file in files)}: {cause}",
            where=where,
            hint="Mend the file; it needs at least one example",
        ) from error


def reading_options(found: FileFormat, text_unit: str = "paragraph") -> dict[str, Any]:
    """What `datasets` is told of a format; `text_unit` as of :func:`load_examples`."""
    if found.builder == "text":
        return {"sample_by": text_unit}
    return {} if found.separator in (None, ",") else {"sep": found.separator}


def locate_json_fault(files: list[Path]) -> None:
    """Raise DataError with the file and line of the first fault; return if there is none."""
    for file in files:
        with faults_named(file):
            _locate_in_file(file)


def _locate_in_file(file: Path) -> None:
    if is_json_list(file):
        with opened(file) as content:
            _parse_example(_decoded(content.read(), str(file)), str(file))
        return
    is_empty = True
    with opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            text = _decoded(line, f"{file}:{number}", encoding="utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                is_empty = False
                _parse_example(text.rstrip("\r\n"), str(file), line=number)
    if is_empty:
        raise DataError("the file is empty", where=str(file), hint="Give it at least one example")


def is_json_list(file: Path) -> bool:
    """Whether a JSON file is one list of examples, rather than a line for each.

    Raises:
        DataError: it cannot be read.
    """
    with faults_named(file), opened(file) as content:
        start: bytes = content.read(len(BOM_UTF8)).removeprefix(BOM_UTF8)
        while not start.strip() and (more := content.read(64)):
            start = more
    return start.lstrip().startswith(b"[")


def _decoded(text: bytes, where: str, encoding: str = "utf-8-sig") -> str:
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(str(error), where=where, hint="Save it as UTF-8") from None


def _parse_example(text: str, file: str, line: int | None = None, *, is_line: bool = False) -> None:
    """Raise DataError, with its place, where `text` is not JSON of an object, or of a list of them.

    Args:
        text: all of a file, or a line of it.
        file: its name.
        line: the number of the line, from 1; None: it is all.
        is_line: whether it is a line, though with blank ones above it for those of the file.
    """
    name = file if line is None else f"{file}:{line}"
    try:
        data = parse_json(text, name, is_line=is_line or line is not None).data
    except DocumentError as error:
        if line is not None and line > 1:  # once more, with its lines counted in the file
            _parse_example("\n" * (line - 1) + text, file, is_line=True)
        raise DataError(error.message, where=error.where if line is None else name, hint=error.hint) from None
    examples = data if isinstance(data, list) else [data]
    for example in examples:
        if not isinstance(example, dict):
            raise DataError(
                "an example is not a JSON object", where=name, hint='Write {"text": "..."} or the like'
            )


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
            f"'{name}' is no file here, and {not_given(error)}",
            where=where,
            hint="Check the name, the split and the network",
        ) from error
