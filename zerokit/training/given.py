"""The examples that a recipe names, to train on and held out, each with its place in the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerokit.data.sources import BUILTIN, load_examples, place_of
from zerokit.data.streams import ExampleStream

if TYPE_CHECKING:
    from datasets import Dataset

    from zerokit.recipe import LoadedRecipe


@dataclass(frozen=True)
class Examples:
    """Examples as the data files have them, each with its place there."""

    dataset: Dataset | ExampleStream
    source: str | list[str]
    where: str
    rows: Sequence[int] | None = None
    """The number of each in its source, from 0; None where they are in the order of the source."""

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
        return place_of(self.source, row, where=self.where)

    def first(self, count: int) -> Dataset:
        """So many of them, loaded."""
        if not isinstance(self.dataset, ExampleStream):
            return self.dataset.select(range(min(count, len(self.dataset))))
        from datasets import Dataset

        return Dataset.from_list(
            [example for _, example in zip(range(count), self.dataset.read(), strict=False)]
        )


def given_examples(loaded: LoadedRecipe, seed: int) -> tuple[Examples, Examples | None]:
    """Training and held-out examples.

    Args:
        loaded: the recipe.
        seed: by which a share is held out.

    Raises:
        DataError: they are missing or malformed.
    """
    data = loaded.recipe.data
    where = loaded.where("data", "train")
    load = ExampleStream if data.streaming else load_examples
    train: Any = load(data.train, where=where, subset=data.subset, split=data.train_split)
    rows: Sequence[int] | None = None
    held_out = None
    if data.eval is not None:
        eval_where = loaded.where("data", "eval")
        dataset = load_examples(
            data.eval, where=eval_where, subset=data.subset, split=data.eval_split or "validation"
        )
        held_out = Examples(dataset, data.eval, eval_where)
    elif data.eval_split is not None or (isinstance(data.train, str) and data.train.startswith(BUILTIN)):
        dataset = load_examples(
            data.train, where=where, subset=data.subset, split=data.eval_split or "held_out"
        )
        held_out = Examples(dataset, data.train, where)
    elif not data.streaming and data.eval_fraction > 0 and len(train) > 1:
        size = max(1, round(len(train) * data.eval_fraction))
        parts = train.train_test_split(test_size=size, seed=seed)
        numbers = train.from_dict({"row": range(len(train))}).train_test_split(test_size=size, seed=seed)
        train, rows = parts["train"], numbers["train"]["row"]
        held_out = Examples(parts["test"], data.train, where, numbers["test"]["row"])
    if not data.streaming and data.max_examples is not None:  # a stream stops by itself
        train = train.select(range(min(data.max_examples, len(train))))
    return Examples(train, data.train, where, rows), held_out
