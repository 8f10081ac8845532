"""The batches of a data set: those that came, those that are to follow, and what the report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from zerokit.rehearsal.report.report import Batches, BatchSize, Evaluation, LargestBatch
from zerokit.rehearsal.watching.batch_size import measure
from zerokit.rehearsal.watching.scan import CRITERIA, Candidate, Scan


@dataclass
class Rehearsed:
    """A batch that was found by the scan and handed out."""

    candidate: Candidate
    first_step: int
    """The optimizer step that it is part of, counted from 1."""
    last_step: int
    """The same, unless no engine shows how many batches a step takes."""
    fits: bool
    """Whether it is of this rank's kind of batches, and has taken the place of one."""


@dataclass
class Source:
    """The loaders of one data set: DeepSpeed's makes a new one for each epoch."""

    dataset: Any
    name: str = ""
    """Of its scan, the same on all ranks."""
    scan: Scan | None = None
    handed: int = 0
    """Batches given to training."""
    steps_before: int = 0
    """Optimizer steps done when the first of them was given."""
    micro_steps: int = 0
    """Of the engines, when it last gave a batch."""
    first: list[BatchSize] = field(default_factory=list)
    """The largest of those that came by themselves, by each criterion."""
    came_for: list[tuple[int, BatchSize]] = field(default_factory=list)
    """Those that came by themselves to be trained on, and the optimizer step, counted from 1, of each."""
    is_uneven: bool = False
    """Whether not all that came by themselves were of one size."""
    signature: Any = None
    in_steps: set[int] = field(default_factory=set)
    """Optimizer steps done when it gave a batch."""
    worst: list[Candidate] | None = None
    """Those still to be rehearsed; None before that is decided."""
    rehearsed: list[Rehearsed] = field(default_factory=list)
    tokens: Counter[int] = field(default_factory=Counter)
    """That this rank was given for each optimizer step, counted from 1."""
    batches: Counter[int] = field(default_factory=Counter)
    """The same."""

    def came(self, batch: Any, step: int | None = None) -> None:
        """Take a batch that came by itself into account, to be trained on in `step` if that is given."""
        size = measure(batch)
        if step is not None:
            self.came_for.append((step, size))
        self.first = self.first or [size] * len(CRITERIA)
        self.is_uneven = self.is_uneven or size != self.first[0]
        self.first = [max(size, most, key=of) for of, most in zip(CRITERIA, self.first, strict=True)]
        self.signature = signature_of(batch)

    def larger(self, *, may_be_ahead: bool) -> list[int]:
        """Places in the scan of what is larger than what came by itself, and can be handed out.

        The first step does not count: optimizers make their states at its end.

        Args:
            may_be_ahead: whether a loader may have fetched a batch for the step after the one it is of here.
        """
        sizes = [size for step, size in self.came_for if step > 1] or [size for _, size in self.came_for]
        most_of: Callable[..., int] = max
        if may_be_ahead:  # one of the last two is the last step's
            sizes, most_of = [size for _, size in self.came_for[-2:]], min
        return [
            place
            for place, one in enumerate(self.scan.worst if self.scan else [])
            if one.data is not None
            and sizes
            and any(of(one.size) > most_of(map(of, sizes)) for of in CRITERIA)
        ]

    def most_tokens(self) -> int:
        """Of the batches that came by themselves."""
        return self.first[0].tokens

    def facts(self) -> Batches:
        """Facts for the report about batches that were trained on."""
        found = self.scan or Scan()
        handed = [one for one in self.rehearsed if one.fits]
        rehearsed = [self.first[0], *(one.candidate.size for one in handed)]
        largest = [*rehearsed, *(one.size for one in found.worst)]
        return Batches(
            rehearsed_tokens=max(size.tokens for size in rehearsed),
            longest_tokens=max(size.tokens for size in largest),
            first=self.first[0],
            largest=max(largest, key=CRITERIA[0]),
            rehearsed=[
                LargestBatch(
                    size=one.candidate.size,
                    number=one.candidate.number,
                    rank=one.candidate.rank,
                    first_step=one.first_step,
                    last_step=one.last_step,
                )
                for one in handed
            ],
            scanned=found.batches,
            of=found.of,
            is_whole=found.is_whole,
            seconds=found.seconds,
            problem=found.problem,
        )

    def evaluation_facts(self) -> Evaluation:
        """Facts for the report about batches of an evaluation."""
        found = self.scan or Scan()
        return Evaluation(largest=self.first[0], scanned=found.batches, of=found.of, is_whole=found.is_whole)


def signature_of(batch: Any) -> Any:
    """What two batches of one loader have in common: names, types, and numbers of dimensions."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return str(batch.dtype), len(batch.shape)
    if hasattr(batch, "items"):
        return {str(key): signature_of(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(signature_of(value) for value in batch)
    if isinstance(batch, list):
        return [signature_of(value) for value in batch[:1]]
    return type(batch).__name__
