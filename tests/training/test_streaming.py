"""Streamed data, step by step: each example once an epoch, the same on every rank, and from any step on."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.data.streams import ExampleStream
from zerokit.errors import CheckpointError, DataError
from zerokit.recipe.model import Columns, TaskSection
from zerokit.training.examples import IGNORED, Encoded, Encoder, UnusableError
from zerokit.training.packing import Layout
from zerokit.training.streaming import (
    POSITION_FILE,
    MicroBatch,
    Position,
    Stream,
    StreamOfRank,
    read_position,
    write_position,
)
from zerokit.training.tasks.answers import AnswerEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BLANK = {"input_ids": [0], "labels": [IGNORED]}
SIZE = 4


class Source:
    """Examples of as many tokens as their number says."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def read(self, skip: int = 0, state: dict[str, Any] | None = None) -> Any:
        self.at = state["at"] if state else 0
        assert self.at == skip
        while self.at < self.count:
            self.at += 1
            yield {"number": self.at}

    def state(self) -> dict[str, Any]:
        return {"at": self.at}


class Numbers(Encoder):
    """Of an example, its number as often as the rest by 4 says: now and then it has nothing to train on."""

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        number = example["number"]
        if number == 13_000:
            raise UnusableError("13,000 brings no luck", hint="Remove it")
        ids = [number] * (1 + number % 5)
        return [Encoded({"input_ids": ids, "labels": ids}) for _ in range(number % 3)] or [
            Encoded(BLANK, has_targets=False)
        ]


def stream_of(count: int, buffer_size: int, *, seed: int | None = 3, **more: Any) -> Stream:
    source: Any = Source(count)
    settings = {"max_examples": None, "where": "data.train", "place": lambda number: f"a.jsonl:{number + 1}"}
    stream = Stream(source, Numbers(), buffer_size=buffer_size, seed=seed, **{**settings, **more})
    stream.fill_first()
    return stream


def an_epoch(stream: Stream, size: int) -> list[list[int]]:
    """The first token of each sequence of each step, 0 of a blank."""
    found = []
    for step in stream.steps(size, BLANK):
        found.append([row["input_ids"][0] for row in step.rows])
        assert len(found[-1]) == size
        if 0 in found[-1] or step.end.epoch > 0:
            return found
        if sum(map(len, found)) == sum(number % 3 for number in range(1, stream.source.count + 1)):
            return found
    raise AssertionError


@given(st.integers(2, 60), st.integers(1, 70), st.integers(1, 9), st.booleans())
@examples(40)
def test_every_example_comes_once_an_epoch(count: int, buffer: int, size: int, shuffled: bool) -> None:
    stream = stream_of(count, max(buffer, 2), seed=3 if shuffled else None)
    steps = an_epoch(stream, size)
    flat = [number for step in steps for number in step if number]
    expected = [number for number in range(1, count + 1) for _ in range(number % 3)]
    assert Counter(flat) == Counter(expected)
    if not shuffled:
        assert flat == expected
    assert all(0 not in step for step in steps[:-1])


@given(st.integers(2, 50), st.integers(2, 60), st.integers(1, 9), st.integers(0, 40), st.booleans())
@examples(15)
def test_a_stream_goes_on_after_any_step(count: int, buffer: int, size: int, after: int, shuffled: bool) -> None:
    """Also in later epochs, and at the ends of buffers and epochs."""
    seed = 3 if shuffled else None
    whole = list(islice(stream_of(count, buffer, seed=seed).steps(size, BLANK), after + 12))
    begin = whole[after].end
    assert json.loads(json.dumps(begin.state)) == begin.state
    rest = list(islice(stream_of(count, buffer, seed=seed, begin=begin).steps(size, BLANK), 11))
    assert [(step.rows, step.numbers) for step in rest] == [(step.rows, step.numbers) for step in whole[after + 1 :]]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = []
    for seed in (1, 2):
        steps = islice(stream_of(40, 20, seed=seed).steps(40, BLANK), 2)
        orders += [[row["input_ids"][0] for row in step.rows] for step in steps]
    assert len({tuple(order) for order in orders}) == 4
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_what_is_not_to_be_read_is_not() -> None:
    steps = an_epoch(stream_of(30, 4, max_examples=10), 5)
    assert max(number for step in steps for number in step) == 10


@pytest.mark.parametrize("in_rows", [True, False])
def test_ranks_share_a_step_as_they_share_loaded_data(in_rows: bool) -> None:
    """Each sequence of it goes to one rank, in the micro batches that a sampler makes."""
    ranks, accumulation, batch = 2, 3, 2
    size = ranks * accumulation * batch
    layout = Layout(batch, size, 8, 1, in_rows=in_rows)
    found: dict[tuple[int, int], list[Any]] = {}
    for rank in range(ranks):
        shapes: dict[str, Any] = {"rank": rank, "ranks": ranks, "accumulation": accumulation}
        shapes |= {"batch_size": batch, "layout": layout, "blank": BLANK}
        own = StreamOfRank(stream_of(31, 10), collator=lambda rows: {"rows": rows}, **shapes)
        for micro, one in enumerate(islice(own, accumulation)):
            assert isinstance(one, MicroBatch)
            found[micro, rank] = one.inputs["rows"]  # type: ignore[assignment]
    step = next(iter(stream_of(31, 10).steps(size, BLANK)))
    order = list(layout.arranged(range(size), [len(row["input_ids"]) for row in step.rows]))
    dealt = [row for micro in range(accumulation) for rank in range(ranks) for row in found[micro, rank]]
    assert dealt == [step.rows[place] for place in order]


def test_an_error_is_the_last_that_every_rank_is_given() -> None:
    own = StreamOfRank(
        stream_of(14_000, 5_000),
        rank=1,
        ranks=2,
        batch_size=500,
        accumulation=1,
        layout=None,
        blank=BLANK,
        collator=lambda rows: {},
    )
    *good, last = own
    assert len(good) >= 5  # the next buffer is read while this one is trained on
    assert isinstance(last, DataError)
    assert str(last) == "a.jsonl:13000: 13,000 brings no luck. Remove it"


def test_data_without_a_token_to_train_on_end_the_run_and_are_not_read_for_ever() -> None:
    class Nothing(Encoder):
        def sequences(self, example: dict[str, Any]) -> list[Encoded]:
            return [Encoded(BLANK, has_targets=False)]

    source: Any = Source(9)
    stream = Stream(source, Nothing(), 4, None, 0, "data.train", str)
    with pytest.raises(DataError, match="none of its first 4 examples has a token"):
        stream.fill_first()
    with pytest.raises(DataError, match="no example has a token to train on"):
        next(stream.steps(2, BLANK))


def test_texts_are_packed_within_a_buffer_and_none_is_lost(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    rows = [{"text": f"The statement number {number}. " * (1 + number % 4)} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for apart in (True, False):
        section = TaskSection(seq_len=120)
        encoder = AnswerEncoder(tokenizer, "text", Columns(), section, apart=apart)
        source = ExampleStream(str(tmp_path / "a.jsonl"), where="data.train")
        stream = Stream(source, encoder, 7, None, 3, "data.train", str)
        stream.fill_first()
        tokens: Counter[int] = Counter()
        for step in stream.steps(4, BLANK):
            for row in step.rows:
                assert len(row["input_ids"]) <= 120
                assert ("position_ids" in row) == (apart and row != BLANK)
                tokens.update(row["input_ids"] if row != BLANK else [])
            if step.end.epoch:
                break
        expected: Counter[int] = Counter()
        for row in rows:
            expected.update([*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id])
        assert tokens == expected


def test_a_position_is_read_as_it_was_written(tmp_path: Path) -> None:
    position = Position(2, 3, 400, {"examples_iterable": {"shard_idx": 1, "previous_state": None}}, 17)
    write_position(position, tmp_path)
    assert read_position(tmp_path) == position


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Its run did not stream them: remove data.streaming"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"epochs": 1}', "cannot be read"),
        ('{"taken": -1}', "has a number that is none"),
        ('{"state": 4}', "has a number that is none"),
    ],
)
def test_a_position_that_cannot_be_read_is_said_in_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / POSITION_FILE).write_text(content)
    with pytest.raises(CheckpointError) as caught:
        read_position(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
