"""The examples that a recipe names, to train on and held out, each with its place in the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.data.content import FileContent, digest_files
from zerokit.data.files import given_files, is_builtin, left_out
from zerokit.data.full_disk import full_disk_told
from zerokit.data.sources import load_examples, place_of
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

if TYPE_CHECKING:
    from zerokit.data.row_dataset import RowDataset
    from zerokit.recipe import LoadedRecipe


_MOST_NAMED = 4


@dataclass(frozen=True)
class Examples:
    """Examples as the data files have them, each with its place there."""

    dataset: RowDataset | ExampleStream
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
        return self.dataset.columns

    @property
    def loaded(self) -> RowDataset:
        """Those that are not streamed."""
        assert not isinstance(self.dataset, ExampleStream)
        return self.dataset

    def place(self, index: int) -> str:
        """File and line of an example."""
        row = index if self.rows is None else int(self.rows[index])
        return place_of(self.source, row, where=self.where, split=self.split)

    def first(self, count: int) -> RowDataset:
        """So many of them, loaded."""
        if not isinstance(self.dataset, ExampleStream):
            return self.dataset.first(count)
        from zerokit.data.row_dataset import RowDataset

        return RowDataset.of_rows(islice(self.dataset.read(), count))


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


def digest_sources(loaded: LoadedRecipe) -> dict[Path, FileContent]:
    """The content of all files that the recipe reads, except those that are streamed.

    Raises:
        DataError: files are missing or cannot be read.
    """
    (train, *others) = named_sources(loaded)
    named = others if loaded.recipe.data.streaming else [train, *others]
    return digest_files(file for source in named for file in given_files(*source))


@full_disk_told()
def given_examples(
    loaded: LoadedRecipe, seed: int, contents: Mapping[Path, FileContent] | None = None
) -> tuple[Examples, Examples | None]:
    """Training and held-out examples.

    Args:
        loaded: the recipe.
        seed: by which a share is held out.
        contents: of :func:`digest_sources`; None reads the files for it.

    Raises:
        DataError: they are missing or malformed.
    """
    data = loaded.recipe.data
    (_, where, _), *others = named_sources(loaded)
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
    loaded: LoadedRecipe,
    source: str | list[str],
    where: str,
    split: str,
    contents: Mapping[Path, FileContent],
) -> Examples:
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
    dataset = load_examples(source, where=where, subset=data.subset, split=split, contents=contents)
    return Examples(dataset, source, where, split=split, also_trained=names)


def _named(source: str | list[str]) -> set[Path]:
    """The files that a source names one by one."""
    paths = [Path(name).expanduser() for name in ([source] if isinstance(source, str) else source)]
    return {path.resolve() for path in paths if path.is_file()}
