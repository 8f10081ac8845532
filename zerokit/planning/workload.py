"""What is trained on: how many sequences, of which lengths, in which batches."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from zerokit.errors import ConfigError
from zerokit.training.packing import Layout, row_length, rows_for

_MOST = 10**15
"""Beyond any training: sequences of all epochs, tokens of a sequence."""
_SIMULATED_SEQUENCES = 4096
"""At least one step."""


def check_in_range(number: float | None, *, where: str, most: int = _MOST) -> None:
    """Raise ConfigError if a number is not more than 0, or not less than `most`."""
    if number is not None and number <= 0:
        raise ConfigError(f"{number:g} is not positive", where=where, hint="Give more than 0")
    if number is not None and not number < most:  # nan is not
        raise ConfigError(f"must be less than {most:g}", where=where, hint="Give another number")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The data of a run, as far as memory and time depend on it.

    Raises:
        ConfigError: a number is not positive, or a length exceeds `seq_len`.
    """

    num_sequences: int
    """Of one epoch: examples, or packed sequences."""
    seq_len: int
    """Tokens of the longest possible sequence: longer examples are cut."""
    global_batch_size: int
    """Sequences of an optimizer step, on all GPUs together."""
    epochs: float = 1.0
    lengths: Mapping[int, int] | None = None
    """How many sequences, or those of a sample, have how many tokens; None: all have `seq_len`."""
    packing: bool = False
    """Whether sequences hold several examples, up to `seq_len` tokens."""
    padding_free: bool = True
    """Whether the model keeps examples in one row apart, so that `zerokit train` puts several into it."""
    notes: tuple[str, ...] = ()
    """What was counted and what was assumed, one sentence each."""

    def __post_init__(self) -> None:
        for name in ("num_sequences", "seq_len", "global_batch_size", "epochs"):
            where = "the number of sequences" if name == "num_sequences" else f"--{name.replace('_', '-')}"
            check_in_range(getattr(self, name), where=where)
        if self.lengths is not None and not all(
            0 < length <= self.seq_len and count > 0 for length, count in self.lengths.items()
        ):
            raise ConfigError(
                f"a length is not between 1 and {self.seq_len}, or its count is not positive", where="lengths"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps of all epochs."""
        return max(1, round(self.num_sequences * self.epochs / self.global_batch_size))

    @cached_property
    def mean_tokens(self) -> float:
        """Tokens of a sequence without padding, on average."""
        if self.lengths is None:
            return self.seq_len
        return sum(length * count for length, count in self.lengths.items()) / sum(self.lengths.values())

    @property
    def tokens(self) -> int:
        """Trained in all epochs, without padding."""
        return round(self.num_sequences * self.epochs * self.mean_tokens)

    def tokens_per_sequence(self, micro_batch_size: int, num_gpus: int = 1) -> float:
        """Tokens of a sequence of the slowest rank with its padding: the mean over simulated steps.

        `zerokit train` distributes the sequences of a step over micro batches (`training.packing`), and ranks
        wait for each other after each micro batch. Accelerate gives rank r every num_gpus-th micro batch.

        Args:
            micro_batch_size: sequences of a micro batch; divides the global batch among `num_gpus` evenly.
            num_gpus: data-parallel ranks.
        """
        if self.lengths is None or len(self.lengths) == 1:
            return float(self.mean_tokens)
        layout = Layout(
            micro_batch_size, self.global_batch_size, self.seq_len, self._multiple, in_rows=self.padding_free
        )
        chance = random.Random(0)  # noqa: S311
        steps = max(1, _SIMULATED_SEQUENCES // self.global_batch_size)
        cumulated = list(accumulate(self.lengths.values()))
        slowest = batches = 0
        for _ in range(steps):
            drawn = chance.choices(list(self.lengths), cum_weights=cumulated, k=self.global_batch_size)
            order = list(layout.arranged(range(len(drawn)), drawn))
            sizes = [
                self._padded([drawn[index] for index in order[start : start + micro_batch_size]])
                for start in range(0, len(order), micro_batch_size)
            ]
            for start in range(0, len(sizes), num_gpus):
                slowest += max(sizes[start : start + num_gpus])
                batches += 1
        return slowest / (batches * micro_batch_size)

    def _padded(self, lengths: list[int]) -> int:
        """Tokens of a micro batch with its padding."""
        rows = [[length] for length in lengths]
        if self.padding_free:
            rows = [[lengths[place] for place in row] for row in rows_for(lengths, self.seq_len)]
        return len(rows) * row_length(max(map(sum, rows)), self._multiple)

    @property
    def _multiple(self) -> int:
        """Rows are as long as a multiple of it, as `pad_to` in `training.tasks.task` says."""
        return 8 if self.seq_len % 8 == 0 else 1
