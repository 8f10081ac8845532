"""Prints examples as the model will see them, with trained tokens marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from zerokit.errors import visible
from zerokit.reporting.tables import STRONG, StyledLine
from zerokit.reporting.terminal import GOOD, show_lines
from zerokit.training.examples import IGNORED
from zerokit.units import quantity

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task

BEGINS, ENDS = "⟦", "⟧"
"""Marks around trained tokens."""


def show(sequences: Dataset, task: Task, tokenizer: PreTrainedTokenizerBase, count: int) -> None:
    """Print the first `count` sequences."""
    for number, sequence in enumerate(sequences.select(range(min(count, len(sequences)))), start=1):
        head = f"Sequence {number}: {quantity(len(sequence['input_ids']), 'token')}"
        labels = sequence.get("labels")
        if isinstance(labels, list):
            trained = sum(label != IGNORED for label in labels)
            head += f", {trained:,} trained on (in {BEGINS}{ENDS})"
        show_lines([[(head, STRONG)], *task.marked(sequence, tokenizer), []])


def marked(
    input_ids: Sequence[int], labels: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> Iterator[StyledLine]:
    """Lines of a sequence's text, with trained tokens in brackets."""
    line: list[tuple[str, str]] = []
    pairs = zip(input_ids, labels, strict=True)
    for is_trained, part in groupby(pairs, key=lambda pair: pair[1] != IGNORED):
        text = tokenizer.decode([token for token, _ in part])
        if is_trained:
            text = f"{BEGINS}{text}{ENDS}"
        first, *others = map(visible, text.split("\n"))
        style = GOOD if is_trained else ""
        line.append((first, style))
        for other in others:
            yield line
            line = [(other, style)]
    yield line
