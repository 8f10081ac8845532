"""An epoch in which every example counts once, on any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from zerokit.training.batch_source import BlanksLastSampler, FilledDataset
from zerokit.training.examples import IGNORED
from zerokit.training.packing import Layout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIZES = st.integers(min_value=1, max_value=60)


def filled(size: int, multiple: int) -> FilledDataset:
    rows = [{"input_ids": [index, 1], "labels": [index, 1]} for index in range(size)]
    return FilledDataset(Dataset.from_list(rows), multiple, {"input_ids": [0], "labels": [IGNORED]})


@given(SIZES, st.integers(min_value=1, max_value=20), st.booleans(), st.integers(0, 9), st.integers(0, 9))
def test_every_example_comes_once_and_the_blanks_come_last(
    size: int, multiple: int, shuffle: bool, seed: int, epoch: int
) -> None:
    dataset = filled(size, multiple)
    assert len(dataset) % multiple == 0
    assert 0 <= len(dataset) - size < multiple
    sampler = BlanksLastSampler(dataset, shuffle=shuffle, seed=seed)
    sampler.set_epoch(epoch)
    order = list(sampler)
    assert len(order) == len(sampler) == len(dataset)
    assert sorted(order[:size]) == list(range(size))
    if not shuffle:
        assert order == list(range(len(dataset)))
    items = [dataset[index] for index in order]
    assert dataset.__getitems__(order) == items
    assert sorted(item["input_ids"][0] for item in items[:size]) == list(range(size))
    for blank in items[size:]:
        assert blank == {"input_ids": [0], "labels": [IGNORED]}


@given(SIZES, st.integers(0, 9), st.integers(0, 9))
def test_the_order_depends_on_seed_and_epoch_alone(size: int, seed: int, epoch: int) -> None:
    few, many = filled(size, 1), filled(size, 16)
    one, other = (BlanksLastSampler(few, shuffle=True, seed=seed), BlanksLastSampler(many, shuffle=True, seed=seed))
    list(one)  # what was drawn before does not matter
    one.set_epoch(epoch)
    other.set_epoch(epoch)
    assert list(one) == list(other)[:size]


@given(SIZES, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_step_has_the_same_examples_however_they_are_spread(
    size: int, ranks: int, steps: int, in_rows: bool
) -> None:
    dataset = filled(size, 2 * ranks)
    layout = Layout(2, 2 * ranks * steps, 8, 1, in_rows=in_rows)
    plain = list(BlanksLastSampler(dataset, shuffle=True, seed=1))
    spread = list(BlanksLastSampler(dataset, shuffle=True, seed=1, layout=layout))
    for start in range(0, len(dataset), layout.step_size):
        step = slice(start, start + layout.step_size)
        assert sorted(plain[step]) == sorted(spread[step])


def test_steps_of_like_lengths_have_every_example_once() -> None:
    lengths = [1 + index * 7 % 40 for index in range(40)]
    rows = [{"input_ids": [1] * length, "labels": [1] * length} for length in lengths]
    dataset = FilledDataset(Dataset.from_list(rows), 2, {"input_ids": [0], "labels": [IGNORED]})
    sampler = BlanksLastSampler(dataset, shuffle=False, seed=0, grouped=2)
    order = list(sampler)
    assert sorted(order) == list(range(40))

    def spread(indices: list[int]) -> int:
        pairs = zip(indices[::2], indices[1::2], strict=True)
        return sum(abs(lengths[one] - lengths[other]) for one, other in pairs)

    assert spread(order) < spread(list(BlanksLastSampler(dataset, shuffle=True, seed=0))) / 2
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    dataset = filled(50, 1)
    orders = set()
    for seed, epoch in ((0, 0), (0, 1), (5, 0)):
        sampler = BlanksLastSampler(dataset, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
    assert len(orders) == 3


@pytest.mark.parametrize("size", [5, 8])
def test_ranks_that_share_the_batches_see_every_example_once(size: int, tokenizer: PreTrainedTokenizerBase) -> None:
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader
    from transformers import DataCollatorForSeq2Seq

    seen: list[int] = []
    for rank in range(2):
        dataset = filled(size, 2 * 2)
        loader = DataLoader(
            dataset,
            batch_size=2,
            sampler=BlanksLastSampler(dataset, shuffle=True, seed=3),
            collate_fn=DataCollatorForSeq2Seq(tokenizer, padding=True),
        )
        batches = list(prepare_data_loader(loader, num_processes=2, process_index=rank, put_on_device=False))
        assert len(batches) == len(dataset) // 4
        for batch in batches:
            assert batch["input_ids"].shape[0] == 2
            seen += [int(row[0]) for row in batch["labels"] if row[0] != IGNORED]
    assert sorted(seen) == list(range(size))
