"""Completions of the recipe's `training.sample_prompts` at each evaluation, printed and in ``samples.jsonl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from zerokit import console
from zerokit.errors import DataError, RecipeError, ZerokitError, visible
from zerokit.generation.api import Record, complete
from zerokit.generation.options import Options
from zerokit.generation.prompts import load_prompts, refuse_all
from zerokit.training.progress import append_line
from zerokit.training.report import SAMPLES_FILE

if TYPE_CHECKING:
    from transformers import TrainerState

    from zerokit.training.run_context import RunContext

_PRINTED = 3
_LONGEST = 100
"""Characters of a text to print."""


def read_sample_prompts(context: RunContext) -> None:
    """Read the prompts of ``training.sample_prompts``. ZerokitError if they or the run cannot be used."""
    context.sample_prompts = []
    if context.own.sample_prompts is None:
        return
    where = context.loaded.where("training", "sample_prompts")
    reasons = {
        "the run has no held-out data, so nothing is evaluated": context.held_out is None,
        "GPUs that share sequences or layers complete no prompts": context.group_place.parallelism.group_size > 1,
        f"{context.task.section.type} generates no text": not context.task.generates,
    }
    for reason in (words for words, is_so in reasons.items() if is_so):
        raise RecipeError(reason, where=where, hint="Remove the key")
    try:
        options = Options(model="", prompts=context.own.sample_prompts)
        prompts = load_prompts(options)
        refuse_all(prompts, options)
    except DataError as error:
        raise RecipeError(error.message, where=where, hint=error.hint) from error
    context.sample_prompts = prompts.values


class Samples(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Completes the prompts at each evaluation."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._file = context.output_dir / SAMPLES_FILE

    def on_evaluate(self, args: Any, state: TrainerState, *_: Any, model: Any = None, **kwargs: Any) -> None:
        context = self._context
        options = Options(
            model="",
            texts=tuple(context.sample_prompts),  # type: ignore[arg-type]  # also chats
            seed=args.seed,
            batch_size=args.per_device_eval_batch_size,
        )
        lines = complete(context.group, model, options, context.tokenizer)
        if not state.is_world_process_zero or not context.group.policy.writes_files:
            return
        try:
            for line in lines:
                append_line(self._file, {"step": state.global_step, **line})
        except (OSError, ZerokitError) as error:
            console.note(f"{self._file} cannot be written: {error}. The run goes on")
        for record in map(Record.of, lines[:_PRINTED]):
            texts = (str(each)[:_LONGEST] for each in (record.prompt, record.error or record.text))
            console.note(f"step {state.global_step}  {' -> '.join(visible(repr(text)) for text in texts)}")
