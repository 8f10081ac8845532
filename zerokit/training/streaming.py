"""Streams training data, with few examples in memory.

Every rank reads all data, and takes its own part of each optimizer step. So all ranks know where the data
end, no rank waits for another, a broken example ends all of them, and any number of ranks can resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from torch.utils.data import IterableDataset

from zerokit.data.streams import ExampleStream
from zerokit.documents import read_document
from zerokit.errors import CheckpointError, DataError, DocumentError, ZerokitError
from zerokit.files import write_file
from zerokit.training.examples import Encoded, Encoder, Features, UnusableError, joined_texts, packed_rows
from zerokit.training.packing import Layout

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

    from zerokit.training.tasks.task import Collator

_AT_ONCE = 500
"""Sequences to keep as Python lists, which need three times the memory."""


@dataclass(frozen=True)
class Position:
    """A position in the data, within a buffer."""

    epoch: int = 0
    """How often all data have been read."""
    buffer: int = 0
    """Its number in the epoch."""
    example: int = 0
    """The number of its first example in the data."""
    state: dict[str, Any] | None = None
    """State of the reader of a Hub data set before that example."""
    taken: int = 0


@dataclass(frozen=True)
class Buffer:
    """Sequences of examples that were read together."""

    begin: Position
    end: Position
    sequences: Dataset | None
    """None if there is no token to train on."""
    numbers: list[int] | None
    """Number of the example of each sequence; None if they are packed."""
    num_cut: int
    num_left_out: int
    num_joined: int
    """Sequences with a token of the generation prompt and the answer."""

    @property
    def num_examples(self) -> int:
        """Examples read; 0 at the end of the data."""
        return self.end.example - self.begin.example

    def __len__(self) -> int:
        return 0 if self.sequences is None else len(self.sequences)


@dataclass(frozen=True)
class Step:
    """The sequences of an optimizer step on all ranks, blanks included."""

    rows: list[Features]
    numbers: list[int | None]
    """Number of the example of each row; None for blanks and packed rows."""
    end: Position
    """Where the next step begins."""


class _Ahead:
    """A buffer that is read in parts, so that no step waits for all of it."""

    def __init__(self, filling: Iterator[Buffer | None]) -> None:
        self._filling = filling
        self._buffer: Buffer | None = None

    def read(self, examples: int) -> None:
        for buffer in islice(self._filling, examples):
            self._buffer = buffer

    def whole(self) -> Buffer:
        for buffer in self._filling:
            self._buffer = buffer
        assert self._buffer is not None
        return self._buffer


@dataclass
class Stream:
    """The sequences of a data set, step by step; after the last example it starts again."""

    source: ExampleStream
    encoder: Encoder
    buffer_size: int
    """Examples that are shuffled and packed together."""
    max_examples: int | None
    """Limit of examples to read."""
    seed: int | None
    """Seed of the order within a buffer; None keeps the order."""
    where: str
    """The place of the data in the recipe, for errors."""
    place: Callable[[int], str]
    """File and line of an example, by its number from 0."""
    begin: Position = Position()
    """Where the run begins."""
    first: Buffer | None = None
    """The first buffer, after :meth:`fill_first`."""

    def fill_first(self) -> None:
        """Read the first buffer. DataError if an example is unusable, or none has a token to train on."""
        reading = islice(self.source.read(), self.max_examples)
        self.first = _Ahead(self._filled(reading, Position())).whole()
        if self.first.sequences is None:
            count = self.first.num_examples
            raise DataError(
                f"none of its first {count:,} examples has a token to train on" if count else "has no examples",
                where=self.where,
                hint="Raise task.seq_len, or check the data",
            )

    @property
    def order(self) -> str:
        """What decides the order in addition to the first buffer and the seed."""
        return f"buffers of {self.buffer_size} of {self.max_examples or 'all'} examples"

    @property
    def first_sequences(self) -> Dataset:
        """Sequences of the first buffer."""
        assert self.first is not None
        assert self.first.sequences is not None
        return self.first.sequences

    def steps(self, size: int, blank: Mapping[str, Any]) -> Iterator[Step]:
        """Steps of `size` sequences; the last one of an epoch has blanks. Raises DataError."""
        begin = self.begin
        while True:
            rows: list[Features] = []
            numbers: list[int | None] = []
            is_empty = begin == Position(begin.epoch)
            for buffer, ahead in self._buffers(begin):
                share = ceil(self.buffer_size / max(len(buffer), 1))
                for taken, index in islice(enumerate(self._order(buffer), start=1), begin.taken, None):
                    assert buffer.sequences is not None
                    rows.append(buffer.sequences[index])
                    numbers.append(None if buffer.numbers is None else buffer.numbers[index])
                    ahead.read(share)
                    if len(rows) == size:
                        yield Step(rows, numbers, replace(buffer.begin, taken=taken))
                        rows, numbers = [], []
                    is_empty = False
                begin = Position(begin.epoch)  # of the next buffers, all are taken
            if is_empty:
                raise DataError("no example has a token to train on", where=self.where, hint="Check the data")
            begin = Position(begin.epoch + 1)
            if rows:
                missing = size - len(rows)
                yield Step([*rows, *[dict(blank)] * missing], [*numbers, *[None] * missing], begin)

    def _order(self, buffer: Buffer) -> Sequence[int]:
        """Shuffled order by the seed and the position of the buffer, so that a resumed run continues it."""
        if self.seed is None:
            return range(len(buffer))
        chance = numpy.random.default_rng((self.seed, buffer.begin.epoch, buffer.begin.buffer))
        return chance.permutation(len(buffer)).tolist()  # type: ignore[no-any-return]

    def _buffers(self, begin: Position) -> Iterator[tuple[Buffer, _Ahead]]:
        """Buffers to the end of the data, each with the next one, which is not read yet."""
        begin = replace(begin, taken=0)
        kept = self.first if begin == Position() else None
        at = begin if kept is None else kept.end
        left = None if self.max_examples is None else max(self.max_examples - at.example, 0)
        reading = islice(self.source.read(at.example, at.state), left)
        ahead = _Ahead(self._filled(reading, begin) if kept is None else iter([kept]))
        while (buffer := ahead.whole()).num_examples:
            ahead = _Ahead(self._filled(reading, buffer.end))
            yield buffer, ahead

    def _filled(self, reading: Iterator[dict[str, Any]], begin: Position) -> Iterator[Buffer | None]:
        """None for each example that is read, and then the buffer."""
        made, num_cut, num_left_out, num_joined = _Table(), 0, 0, 0
        numbers: list[int] = []
        packed_len, apart = self.encoder.packed_len, self.encoder.apart
        at = begin.example
        for example in islice(reading, self.buffer_size):
            for sequence in self._sequences(example, at):
                num_cut += sequence.is_cut
                num_joined += sequence.joins_prompt
                if sequence.has_targets or (packed_len is not None and not apart):
                    made.add(sequence.features)
                    numbers.append(at)
                else:
                    num_left_out += 1
            at += 1
            yield None
        end = Position(begin.epoch, begin.buffer + 1, at, self.source.state())
        sequences = made.whole()
        if sequences is not None and packed_len is not None:
            table = _Table()
            packed = packed_rows(sequences, packed_len)
            for row in packed if apart else joined_texts(sequences, packed_len, keep_rest=True):
                table.add(row)
            sequences = table.whole()
        of = numbers if packed_len is None else None
        yield Buffer(begin, end, sequences, of, num_cut, num_left_out, num_joined)

    def _sequences(self, example: dict[str, Any], number: int) -> Iterator[Encoded]:
        try:
            yield from self.encoder.sequences(example)
        except UnusableError as error:
            raise error.found_at(self.place(number)) from error


class _Table:
    """Rows of numbers, gathered in memory without Python's own lists."""

    def __init__(self) -> None:
        self._parts: list[Dataset] = []
        self._rows: list[Features] = []
        self._features: Any = None

    def add(self, row: Features) -> None:
        self._rows.append(row)
        if len(self._rows) >= _AT_ONCE:
            self._put_away()

    def whole(self) -> Dataset | None:
        """All rows; None if there are none."""
        from datasets import concatenate_datasets

        if self._rows:
            self._put_away()
        return concatenate_datasets(self._parts) if self._parts else None

    def _put_away(self) -> None:
        from datasets import Dataset, Features, List, Value

        if self._features is None:
            number = Value("int32")
            kinds = {name: isinstance(value, list) for name, value in self._rows[0].items()}
            self._features = Features({name: List(number) if kinds[name] else number for name in kinds})
        columns = {name: [row[name] for row in self._rows] for name in self._features}
        self._parts.append(Dataset.from_dict(columns, features=self._features))
        self._rows = []


@dataclass(frozen=True)
class MicroBatch:
    """A micro batch of a rank."""

    inputs: Mapping[str, torch.Tensor]
    end: Position
    """Where the step after this one begins."""
    numbers: list[int] = field(default_factory=list)
    """Numbers of its examples from 0, if known."""

    def pin_memory(self) -> MicroBatch:
        """A copy in pinned memory. Data loaders of torch call this method."""
        pinned = {name: values.pin_memory() for name, values in self.inputs.items()}
        return replace(self, inputs=pinned)


@dataclass(eq=False)
class StreamOfRank(IterableDataset[MicroBatch | ZerokitError]):
    """The micro batches of one rank. An error is its last item, because workers would drop its hint."""

    stream: Stream
    _: KW_ONLY
    rank: int
    ranks: int
    batch_size: int
    accumulation: int
    layout: Layout | None
    """Of a step; None keeps the order."""
    blank: Mapping[str, Any]
    collator: Collator

    def __iter__(self) -> Iterator[MicroBatch | ZerokitError]:
        size = self.batch_size * self.accumulation * self.ranks
        try:
            for step in self.stream.steps(size, self.blank):
                yield from self._own(step)
        except ZerokitError as error:
            yield error

    def _own(self, step: Step) -> Iterator[MicroBatch]:
        """The micro batches of this rank. Batches go to ranks in turn, as accelerate distributes them."""
        order: Sequence[int] = range(len(step.rows))
        if self.layout is not None:
            order = list(self.layout.arranged(order, [len(row["input_ids"]) for row in step.rows]))
        for micro in range(self.accumulation):
            start = (micro * self.ranks + self.rank) * self.batch_size
            places = order[start : start + self.batch_size]
            numbers = [number for place in places if (number := step.numbers[place]) is not None]
            yield MicroBatch(self.collator([step.rows[place] for place in places]), step.end, numbers)


POSITION_FILE = "zerokit_stream.json"
"""File in a checkpoint with the run's position in its data."""


def write_position(position: Position, checkpoint: Path) -> None:
    """Write ``zerokit_stream.json`` into a checkpoint."""
    write_file(checkpoint / POSITION_FILE, json.dumps(asdict(position), indent=2) + "\n")


def read_position(checkpoint: Path) -> Position:
    """The position of a checkpoint's run in its data. CheckpointError if it is missing or not readable."""
    file = checkpoint / POSITION_FILE
    if not file.is_file():
        raise CheckpointError(
            f"has no {POSITION_FILE}, which says where in its data to go on",
            where=checkpoint,
            hint="Its run did not stream them: remove data.streaming",
        )
    try:
        found = Position(**read_document(file).data)
        numbers = (found.epoch, found.buffer, found.example, found.taken)
        if all(isinstance(number, int) and number >= 0 for number in numbers) and isinstance(found.state, dict | None):
            return found
        reason = "has a number that is none"
    except (DocumentError, TypeError) as error:
        reason = str(error)
    raise CheckpointError(f"cannot be read: {reason}", where=file, hint="Continue from an earlier checkpoint-N")
