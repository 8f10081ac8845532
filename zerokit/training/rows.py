"""A micro batch of few rows, in which several examples lie without seeing each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.training.examples import IGNORED
from zerokit.training.packing import row_length, rows_for

if TYPE_CHECKING:
    import torch


_COLUMNS = ("input_ids", "labels", "position_ids", "attention_mask")


class InRows:
    """A collator: the examples of a micro batch in few rows, told apart by positions that begin at 0 again.

    Gives ``input_ids``, ``labels`` and ``position_ids``, and an ``attention_mask`` that says what is padding,
    for those who count: (rows, tokens) each. Models are not to see the mask: with one, transformers looks for
    no documents in a row. Padding follows on the last document of a row, which does not look ahead.

    Args:
        pad_token_id: what rows are filled up with.
        capacity: the most tokens of a row; None lays all in one.
        multiple: of which the length of a row is one.
        shares: whether several examples may lie in a row.
    """

    def __init__(self, pad_token_id: int, capacity: int | None, multiple: int, *, shares: bool) -> None:
        self.pad_token_id = pad_token_id
        self.capacity = capacity
        self.multiple = multiple
        self.shares = shares

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        import numpy  # reads lists ten times faster than torch.tensor does
        import torch

        lengths = [len(one["input_ids"]) for one in features]
        rows = [[index] for index in range(len(features))]
        if self.shares or self.capacity is None:
            rows = rows_for(lengths, self.capacity)
        width = row_length(max(sum(lengths[index] for index in row) for row in rows), self.multiple)
        shape = (len(rows), width)
        empty = (self.pad_token_id, IGNORED, 0, 0)
        made = {
            name: numpy.full(shape, value, dtype=numpy.int64)
            for name, value in zip(_COLUMNS, empty, strict=True)
        }
        for number, row in enumerate(rows):
            ids, labels, positions, mask = (made[name][number] for name in _COLUMNS)
            end = 0
            for index in row:
                one, start, end = features[index], end, end + lengths[index]
                ids[start:end] = one["input_ids"]
                labels[start + 1 : end] = one["labels"][1:]  # what comes before it is another document
                positions[start:end] = one.get("position_ids") or numpy.arange(lengths[index])
            positions[end:] = positions[end - 1] + 1 + numpy.arange(width - end)
            mask[:end] = 1
        return {name: torch.from_numpy(values) for name, values in made.items()}
