"""Estimates of many runs that differ in a few sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product

from zerokit.choices import ZeroStage
from zerokit.estimation.request import Question, Runs
from zerokit.hardware.gpus import Gpu
from zerokit.memory import Estimate, estimate


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Values of each size; an empty tuple keeps the question's value."""

    gpu: tuple[Gpu, ...] = ()
    zero_stage: tuple[ZeroStage, ...] = ()
    num_gpus: tuple[int, ...] = ()
    micro_batch_size: tuple[int, ...] = ()
    seq_len: tuple[int, ...] = ()

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the sizes with more than one value."""
        return tuple(field.name for field in fields(self) if len(getattr(self, field.name)) > 1)

    def questions(self, question: Question) -> Iterator[Question]:
        """All combinations; the last axis changes fastest."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: values for name, values in given.items() if values}
        for values in product(*given.values()):
            yield question.with_sizes(**dict(zip(given, values, strict=True)))


def sweep(question: Question, axes: Axes, runs: Runs | None = None) -> list[Estimate]:
    """Estimate each combination. ZerokitError if a combination is invalid."""
    runs = runs or Runs()
    return [estimate(runs.training_run(one)) for one in axes.questions(question)]
