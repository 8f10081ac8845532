"""Which data is looked through, on which rank, and which of it counts as trained on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader

from zerokit.rehearsal.ranks.call_order import STEPS_DONE
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.watching import batches as module
from zerokit.rehearsal.watching.batches import BatchWatcher
from zerokit.rehearsal.watching.scan import Candidate, Scan, measure

SECONDS = 5.0
STEPS = 2


class Rank:
    """The part of a rank that watches loaders, with a script that makes steps without an engine."""

    def __init__(self, folder: Path | None = None, rank: int = 0) -> None:
        self.steps = 0
        self.exchange = Exchange(folder, rank, 2)
        labels: Any = mock.Mock(engines=[])
        self.batches = BatchWatcher(labels, self.exchange, STEPS, SECONDS, lambda: self.steps)

    def make_engine(self, accumulated: int, micro_steps: int) -> None:
        """Have the script make an engine."""
        engine = mock.Mock(micro_steps=micro_steps)
        engine.gradient_accumulation_steps.return_value = accumulated
        labels: Any = self.batches._labels
        labels.engines = [engine]

    def loader(self, *tokens: int) -> DataLoader[Any]:
        """A loader of four examples of so many tokens, or of one of each length."""
        made: Any = DataLoader.__new__(DataLoader)
        examples = [torch.zeros(size, dtype=torch.long) for size in tokens]
        self.batches._make(DataLoader.__init__, made, examples if len(tokens) > 1 else examples * 4)
        return made

    def iterate(self, loader: DataLoader[Any]) -> Callable[[], Any]:
        """What gives the next batch of `loader`."""
        iterator = self.batches._iterate(DataLoader.__iter__, loader)
        return lambda: self.batches._next(type(iterator).__next__, iterator)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of the examples of each loader that was looked through, for all the time there was."""
    tokens: list[int] = []

    def look(loader: Any, seconds: float, *_: Any, **__: Any) -> Scan:
        tokens.append(len(loader.dataset[0]))
        return Scan(batches=tokens[-1], seconds=seconds / 2 if len(tokens) == 1 else seconds)

    monkeypatch.setattr(module, "scan", look)
    return tokens


def test_a_rank_hears_of_its_own_loader_whatever_else_rank_0_asked_for(tmp_path: Path, scanned: list[int]) -> None:
    first, second = Rank(tmp_path, 0), Rank(tmp_path, 1)
    loaders = {rank: [rank.loader(tokens) for tokens in (9, 7)] for rank in (first, second)}
    for loader in loaders[first]:
        first.iterate(loader)
    second.iterate(loaders[second][1])
    assert scanned == [9, 7]
    (source,) = second.batches.sources
    assert source.scan is not None
    assert source.scan.batches == 7


def test_the_time_to_look_is_that_of_all_ranks_together(tmp_path: Path, scanned: list[int]) -> None:
    first, second = Rank(tmp_path, 0), Rank(tmp_path, 1)
    loaders = {rank: [rank.loader(tokens) for tokens in (9, 7, 5)] for rank in (first, second)}
    for loader in loaders[first]:
        first.iterate(loader)
    first.exchange.close(STEPS_DONE)
    for loader in loaders[second]:
        second.iterate(loader)
    second.iterate(second.loader(3))  # rank 0 has none of these
    assert scanned == [9, 7]


def test_only_what_steps_follow_counts_as_trained_on(scanned: list[int]) -> None:
    rank = Rank()
    validation, pairs, training = (rank.iterate(rank.loader(tokens)) for tokens in (900, 8, 7))
    validation()
    for _ in range(STEPS):
        pairs(), training()
        rank.steps += 1
    trained = {source.first[0].tokens for source in rank.batches._trained_on()}
    assert trained == {8, 7}
    facts = rank.batches.facts()
    assert facts is not None
    assert facts.first.tokens == 8


def test_tokens_are_counted_for_the_step_that_uses_them(scanned: list[int]) -> None:
    rank = Rank()
    rank.make_engine(accumulated=2, micro_steps=1)
    following = rank.iterate(rank.loader(9, 7, 5, 4))
    following(), following(), following()  # one ahead
    rank.steps = 1
    following()
    rank.steps = 2
    assert rank.batches.tokens_of_steps() == [9 + 7, 5 + 4]


@pytest.mark.parametrize("has_engine", [False, True])
@pytest.mark.parametrize(
    ("tokens", "again"), [((9, 7), (True, True)), ((7, 9), (True, False)), ((9, 9), (False, False))]
)
def test_the_largest_batch_comes_again_if_only_the_first_step_had_it_for_sure(
    tokens: tuple[int, int], again: tuple[bool, bool], has_engine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = torch.zeros(1, 9, dtype=torch.long)
    worst = [Candidate(measure(longest), 1, 0, pickle.dumps(longest))]
    monkeypatch.setattr(module, "scan", lambda *_, **__: Scan(worst=worst))
    rank = Rank()
    if has_engine:
        rank.make_engine(accumulated=1, micro_steps=0)
    following = rank.iterate(rank.loader(*tokens, 5))
    for _ in tokens:
        following()
        rank.steps += 1
    assert following().shape[1] == (9 if again[has_engine] else 5)


@pytest.mark.parametrize(("tokens", "uneven"), [((7, 7), False), ((7, 9), True)])
def test_batches_of_one_size_are_the_same_whatever_the_shuffle(
    tokens: tuple[int, ...], uneven: bool, scanned: list[int]
) -> None:
    rank = Rank()
    following = rank.iterate(rank.loader(*tokens))
    for _ in tokens:
        following()
    assert rank.batches.are_uneven() == uneven


def test_a_rank_without_batches_goes_as_far_as_rank_0(
    tmp_path: Path, scanned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Rank(tmp_path, 0), Rank(tmp_path, 1)
    for steps, over in ((2, False), (3, True)):
        first.steps = second.steps = steps
        monkeypatch.setattr(first.batches, "_are_rehearsed", lambda _, over=over: over)
        assert [first.batches.wants_more(), second.batches.wants_more()] == [not over, not over]
    assert second.exchange.unknown_values == 0


def _made(batches: BatchWatcher, *arguments: Any, **given: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = DataLoader.__new__(DataLoader)
    batches._make(DataLoader.__init__, loader, *arguments, **given)
    return loader


@pytest.mark.parametrize(("factor", "size"), [(0.5, 2), (2, 8), (0.125, 1), (1, 4)])
def test_a_script_s_own_loaders_have_the_micro_batch_that_is_tried(factor: float, size: int) -> None:
    """Where no TrainingArguments say it, as in a loop around `deepspeed.initialize`."""
    whole: Any = mock.Mock()
    own = BatchWatcher(whole, whole, 2, 0.0, lambda: 0, factor=factor, is_resized=lambda: False)
    data = list(range(64))
    assert _made(own, data, 4, True).batch_size == size
    assert _made(own, dataset=data, batch_size=4).batch_size == size
    assert _made(own, data, batch_size=size).batch_size == size  # Lightning's, of the script's
    assert _made(own, data, batch_sampler=[[0, 1, 2]]).batch_size is None
    assert _made(own, data, 1, batch_sampler=[[0, 1, 2]]).batch_size is None
    with mock.patch.object(own, "_resized", side_effect=AssertionError("divided twice")):
        owner = type("DataLoaderShard", (DataLoader,), {"__module__": "accelerate.data_loader"})
        own._make(DataLoader.__init__, owner.__new__(owner), data, batch_size=4)
    assert _made(own, data).batch_size == 1
    trainers = BatchWatcher(whole, whole, 2, 0.0, lambda: 0, factor=factor)
    assert _made(trainers, data, batch_size=4).batch_size == 4


# ---- what an evaluation is rehearsed with: the largest batches, and more where it keeps what comes of each


LENGTHS = [3, 5, 4, 9, 2, 6]


@pytest.mark.parametrize(("at_least", "lengths"), [(1, [9]), (4, [9, 5, 4, 9]), (32, [9, 5, 4, 9, 2, 6])], ids=str)
def test_the_largest_come_first_and_the_data_has_an_end(at_least: int, lengths: list[int]) -> None:
    exchange: Any = SimpleNamespace(made_once=lambda _name, _what, make: make(), rank=0, is_active=False)
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
