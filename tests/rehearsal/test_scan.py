"""Looking through a loader's data for its largest batches leaves all of it as it is."""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from zerokit.rehearsal.watching.scan import Scan, measure, scan

LENGTHS = [10 + index % 7 for index in range(40)]
LONG, LONGEST = 23, 400
"""An example, and its length."""
LENGTHS[LONG] = LONGEST
MINUTES = 600.0
"""Longer than any of these scans."""


class Ragged(Dataset[dict[str, Any]]):
    """Examples of :data:`LENGTHS` tokens, with noise from every random state there is."""

    def __init__(self, opened: Callable[[int], None] = lambda _index: None) -> None:
        self.opened = opened

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.opened(index)
        noise = random.random() + np.random.random() + torch.rand(()).item()
        return {"input_ids": torch.full((LENGTHS[index],), index), "noise": noise}


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "noise": torch.tensor([row["noise"] for row in rows])}


def looked(loader: Any, seconds: float = MINUTES) -> Scan:
    return scan(loader, seconds)


def states() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_is_the_one_that_the_loader_then_gives(workers: int) -> None:
    data = Ragged(opened=lambda _index: random.seed(0) if workers else None)
    loader = DataLoader(
        data, 4, shuffle=True, collate_fn=padded, num_workers=workers, worker_init_fn=torch.manual_seed
    )
    before = states()
    found = looked(loader)
    assert states() == before
    assert loader.num_workers == workers
    (worst,) = found.worst
    assert (found.batches, found.of, found.is_whole, found.problem) == (10, 10, True, None)
    assert 0 < 9 * (found.batch_seconds or 0) < found.seconds  # the first batch is no part of the mean
    assert (worst.size.shape, worst.size.tokens, str(worst.size)) == ([4, LONGEST], 1600, "4 x 400 tokens")
    # Workers draw numbers of their own; which examples they are given is drawn here.
    same = DataLoader(data, 4, shuffle=True, collate_fn=padded)
    batch = list(same)[worst.number - 1]
    assert torch.equal(batch["input_ids"], worst.batch["input_ids"])
    if not workers:
        assert torch.equal(batch["noise"], worst.batch["noise"])


def _distributed() -> DataLoader[Any]:
    sampler = DistributedSampler(Ragged(), num_replicas=4, rank=0, shuffle=False)
    return DataLoader(Ragged(), 5, sampler=sampler, collate_fn=padded)


def _sharded() -> DataLoader[Any]:
    shard = BatchSamplerShard(BatchSampler(range(len(LENGTHS)), 5, False), num_processes=4, process_index=0)
    return DataLoader(Ragged(), batch_sampler=shard, collate_fn=padded)


# Every fourth example goes to one rank, or every fourth batch of five.
@pytest.mark.parametrize(("loader", "rank", "number"), [(_distributed(), 3, 2), (_sharded(), 0, 2)])
def test_the_longest_example_is_found_on_whatever_rank(loader: Any, rank: int, number: int) -> None:
    found = looked(loader)
    assert (found.batches, found.of, found.is_whole) == (8, 8, True)
    assert [(one.rank, one.number) for one in found.worst] == [(rank, number)]
    # A run that takes one batch of each rank never comes to it.
    short = scan(loader, MINUTES, most=1)
    assert (short.batches, short.of, short.is_whole) == (4, 4, True)
    assert max(one.size.longest for one in short.worst) < LONGEST
    assert len(next(iter(loader))["input_ids"]) == 5


class Stream(IterableDataset[torch.Tensor]):
    """Lines of a file that is open already, or of a pipe."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __iter__(self) -> Iterator[torch.Tensor]:
        for line in self.file:
            yield torch.zeros(int(line), dtype=torch.long)


def test_a_stream_is_not_used_up(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("7\n" * 9000 + "9\n")  # more than a buffer
    with path.open() as file:
        file.readline()
        loader = DataLoader(Stream(file), batch_size=None)
        found = looked(loader)
        assert (found.batches, found.is_whole, found.worst[0].number) == (9000, True, 9000)
        assert [len(row) for row in loader] == [7] * 8999 + [9]
    read, write = os.pipe()
    os.write(write, b"5\n")
    os.close(write)
    with os.fdopen(read) as pipe:
        loader = DataLoader(Stream(pipe), batch_size=None)
        assert looked(loader).batches == 0
        assert [len(row) for row in loader] == [5]


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from range(len(LENGTHS))


def test_an_endless_sampler_is_asked_for_every_example_once() -> None:
    found = looked(DataLoader(Ragged(), 4, sampler=Endless(), collate_fn=padded))
    assert (found.batches, found.is_whole, found.worst[0].number) == (10, True, LONG // 4 + 1)


class Clock:
    """A clock that this process and its forks set."""

    def __init__(self) -> None:
        self._now = memoryview(mmap.mmap(-1, 8)).cast("d")

    def monotonic(self) -> float:
        return self._now[0]

    def go_to(self, seconds: float) -> None:
        self._now[0] = seconds


def _hangs(clock: Clock) -> None:
    clock.go_to(2 * MINUTES)
    threading.Event().wait()


def _is_slow(clock: Clock) -> None:
    clock.go_to(MINUTES + 0.5)


def _fails(_clock: Clock) -> None:
    raise ValueError("example 31 is broken\nwhatever")


@pytest.mark.parametrize(
    ("happens", "problem"),
    [
        (_hangs, None),
        (_is_slow, None),
        (_fails, "ValueError: example 31 is broken"),
        (lambda _clock: os._exit(0), "the process that did it ended"),
    ],
)
def test_what_was_found_until_then_counts(
    monkeypatch: pytest.MonkeyPatch, happens: Callable[[Clock], None], problem: str | None
) -> None:
    clock = Clock()
    monkeypatch.setattr("zerokit.rehearsal.watching.scan.time", clock)
    data = Ragged(lambda index: happens(clock) if index == LONG + 8 else None)
    found = looked(DataLoader(data, 4, collate_fn=padded))
    assert (found.is_whole, found.problem, found.of) == (False, problem, 10)
    assert found.worst[0].number == LONG // 4 + 1


@pytest.mark.parametrize(
    ("batch", "said", "tokens"),
    [
        ({"input_ids": torch.zeros(4, 512, dtype=torch.int), "y": torch.zeros(4)}, "4 x 512 tokens", 2048),
        ({"pixel_values": torch.zeros(8, 3, 4, 4), "labels": torch.zeros(8, dtype=torch.long)},
         "8 x 3 x 4 x 4 values", 384),
        ([torch.zeros(2, 9, dtype=torch.int32), torch.zeros(2, 9, 9)], "2 x 9 tokens", 18),
        ([{"input_ids": [1, 2, 3]}, {"input_ids": [1]}], "2 x 3 tokens", 4),
        ({"chosen_input_ids": np.zeros((2, 7), np.int64), "mask": np.zeros((2, 1, 7, 7), bool)},
         "2 x 7 tokens", 14),
        (["a text", "b"], "2 x 6 characters", 7),
        ((), " values", 0),
    ],
)  # fmt: skip
def test_how_large_a_batch_is(batch: Any, said: str, tokens: int) -> None:
    size = measure(batch)
    assert (str(size), size.tokens) == (said, tokens)
