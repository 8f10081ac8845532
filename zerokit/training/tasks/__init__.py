"""The tasks of fine-tuning: one file each, and the registry."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.recipe.model import Columns, TaskSection
from zerokit.training.formats import needed_columns
from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.training.tasks.dpo import DPO
from zerokit.training.tasks.masked_lm import MaskedLM
from zerokit.training.tasks.seq2seq import Seq2Seq
from zerokit.training.tasks.sequence_classification import SequenceClassification
from zerokit.training.tasks.task import Task
from zerokit.training.tasks.token_classification import TokenClassification

TASKS: dict[str, type[Task]] = {
    "causal_lm": CausalLM,
    "sequence_classification": SequenceClassification,
    "token_classification": TokenClassification,
    "masked_lm": MaskedLM,
    "seq2seq": Seq2Seq,
    "dpo": DPO,
}
"""By `task.type`."""


def tasks_for(columns: Sequence[str], names: Columns) -> list[str]:
    """The types of tasks that data with these columns are for."""
    return [
        type_
        for type_, task in TASKS.items()
        if any(set(needed_columns(format_, names, columns)) <= set(columns) for format_ in task.formats)
    ]


def task_of(section: TaskSection) -> Task:
    return TASKS[section.type](section)
