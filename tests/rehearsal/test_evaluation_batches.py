"""What an evaluation is rehearsed with: the largest batches, and more where it keeps what comes of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from zerokit.rehearsal.watching.batches import BatchWatcher

LENGTHS = [3, 5, 4, 9, 2, 6]


@pytest.mark.parametrize(
    ("at_least", "lengths"), [(1, [9]), (4, [9, 5, 4, 9]), (32, [9, 5, 4, 9, 2, 6])], ids=str
)
def test_the_largest_come_first_and_the_data_has_an_end(at_least: int, lengths: list[int]) -> None:
    exchange: Any = SimpleNamespace(from_rank_0=lambda _name, _what, make: make(), rank=0, is_active=False)
    labels: Any = SimpleNamespace(engines=[])
    batches = BatchWatcher(labels, exchange, 2, 60.0, lambda: 0)
    loader: DataLoader[Any] = DataLoader([{"input_ids": torch.ones(n, dtype=torch.long)} for n in LENGTHS])
    with batches.only_the_largest(at_least=at_least):
        iterator = batches._iterate(DataLoader.__iter__, loader)
        given = []
        while True:
            try:
                given.append(batches._next(type(iterator).__next__, iterator)["input_ids"].shape[1])
            except StopIteration:
                break
    assert given == lengths
