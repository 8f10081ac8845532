"""The examples that a recipe names, to train on and held out, each with its place in the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.files import given_files, is_builtin, left_out
from zerokit.data.full_disk import full_disk_told
from zerokit.data.sources import load_examples, place_of
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from zerokit.recipe import LoadedRecipe


_MOST_NAMED = 4


@dataclass(frozen=True)
class Examples:
    """Examples as the data files have them, each with its place there."""

    dataset: Dataset | ExampleStream
    source: str | list[str]
    where: str
    rows: Sequence[int] | None = None
    """The number of each in its source, from 0; None where they are in the order of the source."""
    split: str = "train"
    """Of the source, which they are."""
    also_trained: tuple[str, ...] = ()
    """Files of held-out examples that are trained on, too, because the recipe names them twice."""

    @property
    def left_out(self) -> str | None:
        """Which files are of other splits, and so not read, for people."""
        names = [self.source] if isinstance(self.source, str) else self.source
        files = [str(file) for file in left_out(names, self.where, self.split)]
        if not files:
            return None
        more = f" and {len(files) - _MOST_NAMED} more" if files[_MOST_NAMED:] else ""
        named = f"{', '.join(files[:_MOST_NAMED])}{more}"
        why = f"as by their names not of split '{self.split}'"
        return f"not trained on, {why}: {named} (data.eval can name them)"

    @property
    def overlap(self) -> str | None:
        """What a loss on examples that are trained on says, for people."""
        if not self.also_trained:
            return None
        names = ", ".join(self.also_trained)
        return f"warning: {names}: held out and trained on, so its loss says what the model remembers"

    @property
    def columns(self) -> list[str]:
        """Of an example."""
        dataset = self.dataset
        return dataset.columns if isinstance(dataset, ExampleStream) else list(dataset.column_names)

    @property
    def loaded(self) -> Dataset:
        """Those that are not streamed."""
        assert not isinstance(self.dataset, ExampleStream)
        return self.dataset

    def place(self, index: int) -> str:
        """File and line of an example."""
        row = index if self.rows is None else int(self.rows[index])
        return place_of(self.source, row, where=self.where, split=self.split)

    def first(self, count: int) -> Dataset:
        """So many of them, loaded."""
        if not isinstance(self.dataset, ExampleStream):
            return self.dataset.select(range(min(count, len(self.dataset))))
        from datasets import Dataset

        return Dataset.from_list(
            [example for _, example in zip(range(count), self.dataset.read(), strict=False)]
        )


def named_sources(loaded: LoadedRecipe) -> Iterator[tuple[str | list[str], str, str]]:
    """What the recipe reads for training and, if that is not a share of it, for evaluation.

    Yields:
        the source, its place in the recipe, and the split.
    """
    data = loaded.recipe.data
    yield data.train, loaded.where("data", "train"), data.train_split
    if data.eval is not None:
        yield data.eval, loaded.where("data", "eval"), data.eval_split or "validation"
    elif data.eval_split is not None:
        yield data.train, loaded.where("data", "eval_split"), data.eval_split
    elif is_builtin(data.train):
        yield data.train, loaded.where("data", "train"), "held_out"


@full_disk_told()
def given_examples(loaded: LoadedRecipe, seed: int) -> tuple[Examples, Examples | None]:
    """Training and held-out examples.

    Args:
        loaded: the recipe.
        seed: by which a share is held out.

    Raises:
        DataError: they are missing or malformed.
    """
    data = loaded.recipe.data
    (_, where, _), *others = named_sources(loaded)
    load = ExampleStream if data.streaming else load_examples
    train: Any = load(data.train, where=where, subset=data.subset, split=data.train_split)
    rows: Sequence[int] | None = None
    held_out = None
    if others:
        held_out = _held_out(loaded, *others[0])
    elif not data.streaming and data.eval_fraction > 0 and len(train) > 1:
        size = max(1, round(len(train) * data.eval_fraction))
        parts = train.train_test_split(test_size=size, seed=seed)
        numbers = train.from_dict({"row": range(len(train))}).train_test_split(test_size=size, seed=seed)
        train, rows = parts["train"], numbers["train"]["row"]
        held_out = Examples(parts["test"], data.train, where, numbers["test"]["row"], data.train_split)
    if not data.streaming and data.max_examples is not None:  # a stream stops by itself
        train = train.select(range(min(data.max_examples, len(train))))
    return Examples(train, data.train, where, rows, data.train_split), held_out


def _held_out(loaded: LoadedRecipe, source: str | list[str], where: str, split: str) -> Examples:
    """Held-out examples, as they are named.

    Raises:
        DataError: they are missing or malformed, or of files that are trained on.
    """
    data = loaded.recipe.data
    given = given_files(data.train, loaded.where("data", "train"), data.train_split)
    trained = {file.resolve() for file in given}
    files = given_files(source, where, split)
    shared = [file for file in files if file.resolve() in trained]
    # Whoever names a file in both keys wants to see whether the model can learn it by heart; a folder, a
    # pattern or one source for two splits may share files without anybody's knowing.
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
    dataset = load_examples(source, where=where, subset=data.subset, split=split)
    return Examples(dataset, source, where, split=split, also_trained=names)


def _named(source: str | list[str]) -> set[Path]:
    """The files that a source names one by one."""
    paths = [Path(name).expanduser() for name in ([source] if isinstance(source, str) else source)]
    return {path.resolve() for path in paths if path.is_file()}
