"""The training and held-out examples of a recipe, each with its file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.content import FileContent, digest_files
from zerokit.data.files import find_files, is_builtin, other_split_files
from zerokit.data.full_disk import report_full_disk
from zerokit.data.sources import load_examples, place_of
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError
from zerokit.training.formats import detect_format, used_columns

if TYPE_CHECKING:
    from zerokit.data.row_dataset import RowDataset
    from zerokit.recipe import LoadedRecipe
    from zerokit.training.tasks.task import Task


_MOST_FILES_NAMED = 4


@dataclass(frozen=True)
class Examples:
    """Examples of data files, each with its file and line."""

    dataset: RowDataset | ExampleStream
    source: str | list[str]
    where: str
    rows: Sequence[int] | None = None
    """Number of each example in its source, from 0; None if they are in the order of the source."""
    split: str = "train"
    """Split of the source."""
    also_trained: tuple[str, ...] = ()
    """Held-out files that are also trained on, because the recipe names them in both keys."""

    @property
    def left_out(self) -> str | None:
        """A message about files that belong to other splits and are not read; None if there are none."""
        names = [self.source] if isinstance(self.source, str) else self.source
        files = [str(file) for file in other_split_files(names, self.where, self.split)]
        if not files:
            return None
        more = f" and {len(files) - _MOST_FILES_NAMED} more" if files[_MOST_FILES_NAMED:] else ""
        named = f"{', '.join(files[:_MOST_FILES_NAMED])}{more}"
        why = f"as by their names not of split '{self.split}'"
        return f"not trained on, {why}: {named} (data.eval can name them)"

    @property
    def overlap(self) -> str | None:
        """A warning about held-out files that are also trained on; None if there are none."""
        if not self.also_trained:
            return None
        names = ", ".join(self.also_trained)
        return f"warning: {names}: held out and trained on, so its loss says what the model remembers"

    @property
    def columns(self) -> list[str]:
        return self.dataset.columns

    @property
    def loaded(self) -> RowDataset:
        """The data set, which is not streamed."""
        assert not isinstance(self.dataset, ExampleStream)
        return self.dataset

    def place(self, index: int) -> str:
        """File and line of an example."""
        row = index if self.rows is None else int(self.rows[index])
        return place_of(self.source, row, where=self.where, split=self.split)

    def first(self, count: int) -> RowDataset:
        if not isinstance(self.dataset, ExampleStream):
            return self.dataset.first(count)
        from zerokit.data.row_dataset import RowDataset

        return RowDataset.of_rows(islice(self.dataset.read(), count))


def data_sources(loaded: LoadedRecipe) -> Iterator[tuple[str | list[str], str, str]]:
    """Sources to train on and, if the recipe names one, to evaluate on: source, recipe key, split."""
    data = loaded.recipe.data
    yield data.train, loaded.where("data", "train"), data.train_split
    if data.eval is not None:
        yield data.eval, loaded.where("data", "eval"), data.eval_split or "validation"
    elif data.eval_split is not None:
        yield data.train, loaded.where("data", "eval_split"), data.eval_split
    elif is_builtin(data.train):
        yield data.train, loaded.where("data", "train"), "validation"


def digest_sources(loaded: LoadedRecipe) -> dict[Path, FileContent]:
    """Digests of all data files of the recipe, except streamed ones. DataError if a file cannot be read."""
    (train, *others) = data_sources(loaded)
    named = others if loaded.recipe.data.streaming else [train, *others]
    return digest_files(file for source in named for file in find_files(*source))


@report_full_disk()
def load_datasets(
    loaded: LoadedRecipe, seed: int, contents: Mapping[Path, FileContent] | None = None
) -> tuple[Examples, Examples | None]:
    """Training and held-out examples. DataError if they are missing or malformed.

    Args:
        contents: from :func:`digest_sources`; None computes them.
    """
    data = loaded.recipe.data
    (_, where, _), *others = data_sources(loaded)
    contents = digest_sources(loaded) if contents is None else contents
    options: dict[str, Any] = {"where": where, "subset": data.subset, "split": data.train_split}
    train: Any = (
        ExampleStream(data.train, **options)
        if data.streaming
        else load_examples(data.train, **options, contents=contents)
    )
    rows: Sequence[int] | None = None
    held_out = None
    if others:
        held_out = _held_out(loaded, *others[0], contents)
    elif not data.streaming and data.eval_fraction > 0 and len(train) > 1:
        size = max(1, round(len(train) * data.eval_fraction))
        (train, rows), (test, test_rows) = train.split(size, seed)
        held_out = Examples(test, data.train, where, test_rows, data.train_split)
    if not data.streaming and data.max_examples is not None:  # a stream stops by itself
        train = train.first(data.max_examples)
    return Examples(train, data.train, where, rows, data.train_split), held_out


def _held_out(
    loaded: LoadedRecipe, source: str | list[str], where: str, split: str, contents: Mapping[Path, FileContent]
) -> Examples:
    """Held-out examples that the recipe names. DataError if they are also trained on by accident."""
    data = loaded.recipe.data
    given = find_files(data.train, loaded.where("data", "train"), data.train_split)
    trained = {file.resolve() for file in given}
    files = find_files(source, where, split)
    shared = [file for file in files if file.resolve() in trained]
    # A file that both keys name is meant to show what the model memorizes. A folder, a pattern or one source
    # for two splits may share files by accident.
    by_name = set() if data.eval is None else _named(data.train) & _named(data.eval)
    meant = {file.resolve() for file in shared} <= by_name
    names = tuple(dict.fromkeys(map(str, shared)))
    if not files and source == data.train and split == data.train_split:
        names, meant = (f"split '{split}'",), False
    if names and not meant:
        raise DataError(
            f"{names[0]}{' and others' if names[1:] else ''} would be trained on, too",
            where=loaded.where("data", "eval" if data.eval is not None else "eval_split"),
            hint="Name others in data.eval or data.train, leave it to data.eval_fraction, or name the "
            "file itself in both to see what the model remembers",
        )
    dataset = load_examples(source, where=where, subset=data.subset, split=split, contents=contents)
    return Examples(dataset, source, where, split=split, also_trained=names)


def _named(source: str | list[str]) -> set[Path]:
    """The files that a source names directly, not by a folder or a pattern."""
    paths = [Path(name).expanduser() for name in ([source] if isinstance(source, str) else source)]
    return {path.resolve() for path in paths if path.is_file()}


_MOST_EXAMPLES = 500_000
"""Most examples to compare, which takes seconds."""


def duplicates_line(train: Examples, held_out: Examples | None, loaded: LoadedRecipe, task: Task) -> str | None:
    """A warning about held-out examples that are also trained on; None without any, or unchecked."""
    data = loaded.recipe.data
    if held_out is None or held_out.also_trained or data.streaming:
        return None
    if len(train.loaded) + len(held_out.loaded) > _MOST_EXAMPLES:
        return None
    format_ = detect_format(train.columns, data, task.formats, where=train.where)

    def hashes(examples: Examples) -> Iterator[int]:
        return _hashes(examples.loaded, used_columns(format_, data.columns, examples.columns))

    held = list(hashes(held_out))
    wanted = set(held)
    trained = {digest for digest in hashes(train) if digest in wanted}
    duplicates = [index for index, digest in enumerate(held) if digest in trained]
    if not duplicates:
        return None
    are = "example is" if len(held) == 1 else "examples are" if len(duplicates) > 1 else "examples is"
    return (
        f"warning: {len(duplicates):,} of {len(held):,} held-out {are} also trained on "
        f"({'such as ' if duplicates[1:] else ''}{held_out.place(duplicates[0])}), "
        "so the held-out loss flatters"
    )


def _hashes(examples: RowDataset, columns: Collection[str]) -> Iterator[int]:
    """A hash of `columns` of each example; equal for equal values within this process."""
    from zerokit.data.row_dataset import without_nulls

    for row in examples:
        example = without_nulls({column: row[column] for column in columns})
        yield hash(json.dumps(example, sort_keys=True, default=str))


_MOST_NAMED = 8

Places = Callable[[Sequence[int]], list[str]]
"""Numbers of sequences -> file and line of each; empty if sequences are packed."""


def number_examples(rows: Sequence[int]) -> list[str]:
    """Names for streamed examples. To find their lines, all data would be read again."""
    return [f"example {row + 1:,}" for row in rows]


def name_examples(rank: int, rows: Sequence[int], places: Places) -> str:
    """``rank 1 with data.jsonl:17, data.jsonl:3``."""
    found = places(rows[:_MOST_NAMED]) or [f"sequence {row}" for row in rows[:_MOST_NAMED]]
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return f"rank {rank} with {', '.join(found)}{more}"
