"""Turns examples into token ids and labels; -100 marks tokens without a loss."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from zerokit.data.content import code_digest, digest_of
from zerokit.data.encoding import value_kind
from zerokit.data.full_disk import report_full_disk
from zerokit.errors import DataError
from zerokit.extras import package_versions
from zerokit.training.packing import best_fit, lengths_of

if TYPE_CHECKING:
    from datasets import Dataset

    from zerokit.data.row_dataset import RowDataset, RowDecoder

Features = dict[str, Any]
"""A sequence as a model gets it: ``input_ids`` and other features by name."""

IGNORED = -100


@dataclass(frozen=True)
class Tokenized:
    """Examples as features, and the number of those that did not fit."""

    dataset: Dataset
    left_out: Mapping[str, LeftOut]
    """Sequences with nothing to learn, by :attr:`Encoded.left_out_reason`."""
    num_cut: int
    """Examples cut to the longest sequence."""
    num_joined: int = 0
    """Examples with a token of which :attr:`Encoded.joins_prompt` is true."""
    numbers: Dataset | None = None
    """Number of the example of each sequence; None if sequences are packed."""

    def example_of(self, sequence: int) -> int | None:
        """Number of the example of a sequence; None if sequences are packed."""
        return None if self.numbers is None else int(self.numbers[sequence][_EXAMPLE])

    @property
    def num_left_out(self) -> int:
        return sum(group.count for group in self.left_out.values())


@dataclass(frozen=True)
class LeftOut:
    """Sequences that are left out for one reason."""

    count: int
    first: str
    """The place of the first."""


@dataclass(frozen=True)
class Encoded:
    """A sequence of an example."""

    features: Features
    is_cut: bool = False
    has_targets: bool = True
    """Whether any of its tokens is trained on."""
    left_out_reason: str = "no token to train on"
    """Why it is left out if it has no targets."""
    joins_prompt: bool = False
    """Whether a token has the end of a generation prompt and the first characters of the answer."""


class UnusableError(DataError):
    """An example that cannot be trained on. `where` is set if the example is not to blame."""

    index = 0
    """Its number in the data set, from 0."""

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = "Fix or remove that example"
    ) -> None:
        super().__init__(message, where=where, hint=hint)

    def found_at(self, place: str) -> DataError:
        """The error with the place of the example."""
        if self.where is None:
            return DataError(self.message, where=place, hint=self.hint)
        return DataError(f"{self.message} (found at {place})", where=self.where, hint=self.hint)


class Encoder(ABC):
    """Examples to features; picklable, so that `datasets` can cache its results."""

    packed_len: int | None = None
    """Tokens of a packed sequence; None without packing."""
    apart = False
    """Whether packed documents stay apart and whole, or are joined to one text and cut."""

    @abstractmethod
    def sequences(self, example: dict[str, Any]) -> Iterable[Encoded]:
        """The sequences of an example, at least one. UnusableError if it cannot be trained on."""


@dataclass(frozen=True)
class _BatchEncoder:
    """Encodes batches of a table. `datasets` caches the results by all attributes."""

    encoder: Encoder
    decode: RowDecoder
    code: str
    """A digest of the code that encodes."""

    def __call__(self, batch: Mapping[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        for index, example in zip(indices, self.decode(batch), strict=True):
            try:
                sequences = self.encoder.sequences(example)
            except UnusableError as error:
                error.index = index
                raise
            for sequence in sequences:
                reason = "" if sequence.has_targets else sequence.left_out_reason
                marks = {_IS_CUT: sequence.is_cut, _REASON: reason, _EXAMPLE: index}
                marks[_JOINS] = sequence.joins_prompt
                for name, value in {**sequence.features, **marks}.items():
                    rows.setdefault(name, []).append(value)
        return rows


_IS_CUT, _REASON, _EXAMPLE, _JOINS = "is_cut", "left_out_reason", "example", "joins_prompt"


@report_full_disk()
def tokenize(
    examples: RowDataset, encoder: Encoder, *, seq_len: int, where: str, place: Callable[[int], str] | None = None
) -> Tokenized:
    """Turn examples into features of at most `seq_len` tokens.

    Raises:
        DataError: a wrong value, a chat that the template cannot render, or no token to train on.
    """

    def at(index: int) -> str:
        return place(index) if place is not None else f"{where}, example {index + 1}"

    code = digest_of([code_digest("data"), code_digest("training"), package_versions(), version("tokenizers")])
    try:
        tokenized = examples.table.map(
            _BatchEncoder(encoder, examples.decode, code),
            batched=True,
            with_indices=True,
            remove_columns=examples.table.column_names,
            desc="Tokenizing",
        )
    except UnusableError as error:
        raise error.found_at(at(error.index)) from error
    num_cut, left_out = sum(tokenized[_IS_CUT]), _left_out(tokenized, at)
    joining = zip(tokenized[_JOINS], tokenized[_EXAMPLE], strict=True)
    num_joined = len({number for joins, number in joining if joins})
    joined = encoder.packed_len is not None and not encoder.apart and _enough_to_pack(tokenized)
    if not joined:
        tokenized = tokenized.filter(operator.not_, input_columns=_REASON, desc="Filtering")
    numbers = tokenized.select_columns([_EXAMPLE]) if encoder.packed_len is None else None
    tokenized = tokenized.remove_columns([_IS_CUT, _REASON, _EXAMPLE, _JOINS])
    if encoder.packed_len is not None and (joined or encoder.apart) and len(tokenized):
        tokenized = _pack(tokenized, joined_texts if joined else packed_rows, encoder.packed_len)
    if len(tokenized) == 0:
        raise DataError(
            f"none of its {len(examples)} examples can be trained on within {seq_len} tokens "
            f"({describe_left_out(left_out)})",
            where=where,
            hint="Raise task.seq_len, or check the data" if num_cut else "Check the data",
        )
    return Tokenized(tokenized, {} if joined else left_out, num_cut, num_joined, numbers)


def _left_out(tokenized: Dataset, at: Callable[[int], str]) -> dict[str, LeftOut]:
    numbers: dict[str, list[int]] = {}
    for reason, number in zip(tokenized[_REASON], tokenized[_EXAMPLE], strict=True):
        if reason:
            numbers.setdefault(reason, []).append(number)
    return {reason: LeftOut(len(of_it), at(of_it[0])) for reason, of_it in numbers.items()}


def describe_left_out(left_out: Mapping[str, LeftOut]) -> str:
    """For each reason, how many sequences are left out and where the first is."""
    return "; ".join(f"{reason}: {found.count:,}, first {found.first}" for reason, found in left_out.items())


def text_or_none(example: dict[str, Any], column: str) -> str | None:
    """The text of an optional column."""
    return None if example.get(column) is None else text_of(example, column)


def text_of(example: dict[str, Any], column: str) -> str:
    """The text in a column; UnusableError if there is none."""
    value = example[column]
    if value is None:  # datasets fills in what an example lacks
        raise UnusableError(f"'{column}' is absent or null")
    if not isinstance(value, str):
        raise UnusableError(f"'{column}' is {value_kind(value)}, not text")
    return value


def _enough_to_pack(tokenized: Dataset) -> bool:
    """Whether there are two tokens, so that one can be predicted."""
    return len(tokenized) > 1 or len(tokenized[0]["input_ids"]) > 1


def _pack(tokenized: Dataset, made: Callable[[Dataset, int], Iterator[Features]], seq_len: int) -> Dataset:
    """Sequences of at most `seq_len` tokens with several documents each, by the function `made`."""
    from datasets import Dataset

    # Keyword arguments are hashed for the cache, so that a second rank finds what the first one wrote.
    return Dataset.from_generator(made, gen_kwargs={"tokenized": tokenized, "seq_len": seq_len})


def packed_rows(tokenized: Dataset, seq_len: int) -> Iterator[Features]:
    """Whole documents side by side; positions restart at 0, and first tokens have no label."""
    for row in best_fit(lengths_of(tokenized), seq_len):
        documents = [tokenized[index] for index in row]
        yield {
            "input_ids": [token for document in documents for token in document["input_ids"]],
            "labels": [label for document in documents for label in (IGNORED, *document["labels"][1:])],
            "position_ids": [place for document in documents for place in range(len(document["input_ids"]))],
        }


def joined_texts(tokenized: Dataset, seq_len: int, *, keep_rest: bool = False) -> Iterator[Features]:
    """Full sequences of joined documents. The rest is dropped unless it is all, or with `keep_rest`."""
    names = tokenized.column_names
    rest: dict[str, list[Any]] = {name: [] for name in names}
    full = False
    for example in tokenized:
        for name in names:
            rest[name] += example[name]
        while len(rest["input_ids"]) >= seq_len:
            full = True
            yield {name: rest[name][:seq_len] for name in names}
            rest = {name: rest[name][seq_len:] for name in names}
    if (keep_rest or not full) and len(rest.get("input_ids", ())) > 1:
        yield rest
