"""A recipe to start from for each task and adapter: the embedded one with what they change in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from zerokit.errors import RecipeError, did_you_mean
from zerokit.recipe.load import embedded_text
from zerokit.recipe.model import PeftType, task_hint


@dataclass(frozen=True)
class _Start:
    model: str
    example: str
    """A line of the data."""
    keys: tuple[str, ...]
    """Of the section `task`, without its type."""
    learning_rate: str
    is_small: bool = True
    """Whether a GPU has room for many examples of the model at once."""


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


_LOW_RANK = ("r: 16", "lora_alpha: 32", "target_modules: all-linear")
_TOKENS = ("num_virtual_tokens: 20 # learned, and put before each sequence",)
_ADAPTERS: dict[PeftType, tuple[tuple[str, ...], float]] = {
    "lora": (_LOW_RANK, 2e-4),
    "qlora": (_LOW_RANK, 2e-4),
    "ia3": ((), 3e-3),
    "p_tuning": (_TOKENS, 1e-3),
    "prefix_tuning": (_TOKENS, 1e-2),
    "prompt_tuning": (_TOKENS, 3e-2),
}
"""Keys of the section `peft` without its type, and a learning rate, as in peft's examples."""
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
    keys, rate = _ADAPTERS[peft]  # type: ignore[index]
    lines = (f"type: {peft} # all that is trained; more keys are those of peft's config", *keys)
    section = "peft:\n" + "".join(f"  {line}\n" for line in lines)
    text = text.replace("\ntraining:", f"\n{section}\ntraining:", 1)
    rate = rate / _SLOWER_FOR_DPO if task == "dpo" else rate
    text = re.sub(r"learning_rate: \S+", f"learning_rate: {rate:.1e}", text, count=1)
    text = re.sub(r"save_total_limit: 1 #.*", "save_total_limit: 1", text, count=1)
    if peft == "prefix_tuning":  # which lies in the cache that checkpointing drops
        text = re.sub(r"^  gradient_checkpointing: true\n", "", text, count=1, flags=re.MULTILINE)
    return text


def _of_task(task: str) -> str:
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
