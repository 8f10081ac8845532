"""Held-out examples that are trained on as well: a loss on them says what the model remembers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from zerokit import console
from zerokit.training.shapes import detect_format, used_columns

if TYPE_CHECKING:
    from zerokit.data.row_dataset import RowDataset
    from zerokit.distributed.group import RankGroup
    from zerokit.recipe import LoadedRecipe
    from zerokit.training.given import Examples
    from zerokit.training.tasks.task import Task

_MOST_EXAMPLES = 500_000
"""That are read for it, a matter of seconds."""


def tell_twins(
    group: RankGroup, train: Examples, held_out: Examples | None, loaded: LoadedRecipe, task: Task
) -> None:
    """Say on one rank what :func:`twins_line` says, if anything."""
    is_main = group.ranks.is_main
    line = group.together(lambda: twins_line(train, held_out, loaded, task) if is_main else None)
    if line is not None:
        console.note(line)


def twins_line(train: Examples, held_out: Examples | None, loaded: LoadedRecipe, task: Task) -> str | None:
    """How many of the held-out examples are also trained on, and where one is, for people.

    Args:
        train: what is trained on.
        held_out: what is not to be.
        loaded: the recipe.
        task: what they are for.

    Returns:
        None: none is, or nobody has looked: data are streamed or many, or are meant to be the same.
    """
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
    trained = {one for one in hashes(train) if one in wanted}
    twins = [index for index, one in enumerate(held) if one in trained]
    if not twins:
        return None
    are = "example is" if len(held) == 1 else "examples are" if len(twins) > 1 else "examples is"
    return (
        f"warning: {len(twins):,} of {len(held):,} held-out {are} also trained on "
        f"({'such as ' if twins[1:] else ''}{held_out.place(twins[0])}), so the held-out loss flatters"
    )


def _hashes(examples: RowDataset, columns: Collection[str]) -> Iterator[int]:
    """Of what each example has in `columns`: equal where they are, within this process."""
    for row in examples:
        example = _without_none({column: row[column] for column in columns})
        yield hash(json.dumps(example, sort_keys=True, default=str))


def _without_none(value: Any) -> Any:
    """A value without what is None: absent, or null."""
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list) else value
