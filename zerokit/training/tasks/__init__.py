"""The tasks of fine-tuning: a file each, and the registry by which a recipe names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.training.tasks.sequence_classification import SequenceClassification

if TYPE_CHECKING:
    from zerokit.recipe.model import TaskSection
    from zerokit.training.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "causal_lm": CausalLM,
    "sequence_classification": SequenceClassification,
}
"""By `task.type`."""


def task_of(section: TaskSection) -> Task:
    """The task that a recipe names."""
    return TASKS[section.type](section)
