"""A recipe to start from for each task: the embedded one for fine-tuning with what the task changes in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zerokit.errors import RecipeError
from zerokit.recipe.load import embedded_text
from zerokit.recipe.model import task_hint


@dataclass(frozen=True)
class _Start:
    model: str
    example: str
    """A line of the data."""
    keys: tuple[str, ...]
    """Of the section `task`, beside its type."""
    learning_rate: str
    is_small: bool = True
    """Whether the model is one of which a GPU has room for many examples at once."""


_STARTS = {
    "sequence_classification": _Start(
        "google-bert/bert-base-uncased", '{"text": ..., "label": ...}', ("seq_len: 256",), "2.0e-5"
    ),
    "token_classification": _Start(
        "google-bert/bert-base-cased",
        '{"tokens": ["Ada", "wrote"], "tags": ["B-PER", "O"]}',
        ("seq_len: 256",),
        "2.0e-5",
    ),
    "masked_lm": _Start(
        "google-bert/bert-base-uncased",
        '{"text": ...}',
        ("seq_len: 512", "mask_probability: 0.15", "whole_words: false"),
        "5.0e-5",
    ),
    "seq2seq": _Start(
        "google-t5/t5-small",
        '{"prompt": ..., "completion": ...}',
        ("seq_len: 512", "target_len: 128 # the longest answer, also of generated ones"),
        "1.0e-4",
    ),
    "dpo": _Start(
        "Qwen/Qwen2.5-0.5B-Instruct",
        '{"prompt": ..., "chosen": ..., "rejected": ...}',
        ("seq_len: 1024", "beta: 0.1 # how much a step away from the model costs"),
        "5.0e-7",
        is_small=False,
    ),
}

_OF_SMALL = (
    (r"^  per_device_train_batch_size: 1\n  grad.*_steps: 8\n", "  per_device_train_batch_size: 16\n"),
    (r"^  gradient_checkpointing: true\n", "  eval_strategy: epoch # and metrics on the held-out data\n"),
    (r"eval_fraction: 0\.05", "eval_fraction: 0.1"),
)
"""What such a model changes in the recipe for language models: a pattern, and what takes its place."""


def starter(task: str) -> str:
    """The YAML of a recipe for a task.

    Raises:
        RecipeError: there is no such task.
    """
    text = embedded_text("finetune.yaml")
    if task == "causal_lm":
        return text
    if task not in _STARTS:
        raise RecipeError(f"{task!r} is not a choice here", where="--task.type", hint=task_hint(task))
    start = _STARTS[task]
    section = "".join(f"  {line}\n" for line in (f"type: {task}", *start.keys))
    for pattern, line in (
        (r"^model: \S+", f"model: {start.model}"),
        (r"^  train: .*", f"  train: my.jsonl # {start.example}"),
        (r"^task:\n(  .*\n)+", f"task:\n{section}"),
        (r"^  learning_rate: \S+", f"  learning_rate: {start.learning_rate}"),
        *(_OF_SMALL if start.is_small else ()),
    ):
        text = re.sub(pattern, line, text, count=1, flags=re.MULTILINE)
    return text
