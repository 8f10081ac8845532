"""A recipe to start from for each task and adapter: the embedded one with what they change in it."""

import re
from collections.abc import Mapping
from typing import Any, get_args

from zerokit.errors import RecipeError, did_you_mean
from zerokit.recipe.load import embedded_text
from zerokit.recipe.model import PeftType, task_hint
from zerokit.tables import table_of

_TABLES: Mapping[str, Mapping[str, Any]] = table_of(__file__)
_TASKS = _TABLES["tasks"]
"""Task -> its model, a line of its data, the keys of the section `task` without its type, the learning rate,
and whether a GPU has room for many examples of the model at once."""
_ADAPTERS = _TABLES["adapters"]
"""Type of adapter -> the other keys of the section `peft`, and a learning rate, as in peft's examples."""

_OF_SMALL = (
    (r"^  per_device_train_batch_size: 1\n  grad.*_steps: 8\n", "  per_device_train_batch_size: 16\n"),
    (r"^  gradient_checkpointing: true\n", "  eval_strategy: epoch # and metrics on the held-out data\n"),
    (r"eval_fraction: 0\.05", "eval_fraction: 0.1"),
)
"""What such a model changes in the recipe for language models: a pattern, and what takes its place."""

_SLOWER_FOR_DPO = 40


def starter(task: str, peft: str | None = None) -> str:
    """The YAML of a recipe for a task, with an adapter of that type if one is named.

    Raises:
        RecipeError: there is no such task or type.
    """
    text = _of_task(task)
    if peft is None:
        return text
    if peft not in get_args(PeftType):
        hint = did_you_mean(peft, get_args(PeftType))
        raise RecipeError(f"{peft!r} is not a choice here", where="--peft.type", hint=hint)
    adapter = _ADAPTERS[peft]
    lines = (f"type: {peft} # all that is trained; more keys are those of peft's config", *adapter["keys"])
    section = "peft:\n" + "".join(f"  {line}\n" for line in lines)
    text = text.replace("\ntraining:", f"\n{section}\ntraining:", 1)
    rate = adapter["learning_rate"] / (_SLOWER_FOR_DPO if task == "dpo" else 1)
    text = re.sub(r"learning_rate: \S+", f"learning_rate: {rate:.1e}", text, count=1)
    text = re.sub(r"save_total_limit: 1 #.*", "save_total_limit: 1", text, count=1)
    if peft == "prefix_tuning":  # which lies in the cache that checkpointing drops
        text = re.sub(r"^  gradient_checkpointing: true\n", "", text, count=1, flags=re.MULTILINE)
    return text


def _of_task(task: str) -> str:
    text = embedded_text("finetune.yaml")
    if task == "causal_lm":
        return text
    if task not in _TASKS:
        raise RecipeError(f"{task!r} is not a choice here", where="--task.type", hint=task_hint(task))
    start = _TASKS[task]
    section = "".join(f"  {line}\n" for line in (f"type: {task}", *start["keys"]))
    for pattern, line in (
        (r"^model: \S+", f"model: {start['model']}"),
        (r"^  train: .*", f"  train: my.jsonl # {start['example']}"),
        (r"^task:\n(  .*\n)+", f"task:\n{section}"),
        (r"^  learning_rate: \S+", f"  learning_rate: {start['learning_rate']}"),
        *(_OF_SMALL if start["is_small"] else ()),
    ):
        text = re.sub(pattern, line, text, count=1, flags=re.MULTILINE)
    return text
