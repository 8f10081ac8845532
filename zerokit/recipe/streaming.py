"""What does not go with training data that are streamed: ``data.streaming`` of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.findings import Finding
from zerokit.recipe.model import Recipe, TaskType, TokenizerTraining
from zerokit.recipe.training_keys import NO_LIMIT
from zerokit.tables import table_of

STREAMED: tuple[TaskType, ...] = ("causal_lm", "masked_lm", "seq2seq")
"""Tasks that do not need all examples before the first step."""

_OFF = "or remove data.streaming"

_LIMITED: Mapping[str, Mapping[str, Any]] = table_of(__file__)
"""Keys of `training`: the `values` that work with streaming, `why` no other does, and the `fix`."""


def streaming_problems(recipe: Recipe) -> list[Finding]:
    """The settings that cannot work with streamed training data, if they are streamed."""
    return list(_problems(recipe)) if recipe.data.streaming else []


def _problems(recipe: Recipe) -> Iterator[Finding]:
    training = recipe.training
    steps = training.get("max_steps")
    if recipe.task.type not in STREAMED:
        needs = "computes reference log-probabilities" if recipe.task.type == "dpo" else "reads the classes"
        yield Finding(
            ("data", "streaming"),
            f"{recipe.task.type} {needs} of all examples first",
            f"Remove it: only {', '.join(STREAMED)} are streamed",
        )
    if isinstance(recipe.model.tokenizer, TokenizerTraining):
        yield Finding(
            ("model", "tokenizer", "train_bpe"),
            "a tokenizer is trained on all examples, and they are streamed",
            f"Name a tokenizer, {_OFF}",
        )
    if "eval_fraction" in recipe.data.model_fields_set and recipe.data.eval_fraction > 0:
        yield Finding(
            ("data", "eval_fraction"),
            "no share of streamed data can be held out, because the number of examples is not known",
            "Name held-out data in data.eval, or set it to 0",
        )
    for name, limit in _LIMITED.items():
        value = training.get(name)
        if value is not None and value not in limit["values"]:
            message = f"{name} is {value!r}, but {limit['why']}"
            yield Finding(("training", name), message, f"{limit['fix']}, {_OFF}")
    if recipe.task.type == "masked_lm" and training.get("dataloader_num_workers"):
        yield Finding(
            ("training", "dataloader_num_workers"),
            "the masks of streamed data are drawn by the rank itself, so that it can resume",
            "Remove it",
        )
    if steps in (None, NO_LIMIT):
        yield Finding(
            ("training", "max_steps") if "max_steps" in training else ("data", "streaming"),
            "streamed data need training.max_steps: the number of examples is not known",
            f"Set it, {_OFF}",
        )
