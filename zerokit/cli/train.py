"""``zerokit train``: fine-tune, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zerokit.cli.command import described
from zerokit.cli.on_ranks import is_main, is_rank, start_ranks
from zerokit.console import note
from zerokit.distributed.preemption import SAVE_WITHIN
from zerokit.distributed.ranks import STUCK_AFTER
from zerokit.documents import dotted
from zerokit.documents.regular_files import unreadable_reason
from zerokit.errors import LaunchError, RecipeError, nearest

if TYPE_CHECKING:
    from zerokit.training.restarts import Restarts


@described("train")
def train(
    context: typer.Context,
    recipe: Path | None = None,
    force: bool = False,
    resume: str | None = None,
    retries: int = 0,
    trust_checkpoint: bool = False,
    no_verify: bool = False,
    print_recipe: bool = False,
    preview: int | None = None,
    push_to_hub: str | None = None,
    stuck_after: float = STUCK_AFTER,
    save_within: float = SAVE_WITHIN,
    num_gpus: int | None = None,
    master_port: int | None = None,
    local_rank: int | None = None,
) -> None:
    """Fine-tune a model with DeepSpeed ZeRO.

    Without --recipe it runs the embedded default: a small Llama from scratch on Python's language
    reference.

    All other options override one value of the recipe each, and have YAML values: --SECTION.KEY VALUE,
    such as --training.learning_rate 1e-5 or --data.train my.jsonl. Two replace a whole section: --model,
    by a Hub id or a folder (without --recipe, the rest is then the embedded fine-tuning recipe), and
    --deepspeed, by a ds_config. --precision and --matmul_precision are top-level keys.
    """
    _refuse_misspelled(context)
    if print_recipe:
        _pass_over_none(context, "--print-recipe", "prints a recipe as it is", _ALL_BUT_PRINT_RECIPE)
        if is_main():
            typer.echo(_starter(context.args), nl=False)
        return
    if preview is not None:
        _pass_over_none(context, "--preview", "trains nothing", _OF_TRAINING)
    overrides = context.args
    if resume is not None:
        overrides = [*overrides, f"--training.resume_from_checkpoint={resume}"]
        if not is_rank():
            from zerokit.recipe.load import parse_overrides
            from zerokit.training.resume import check_resume_value

            check_resume_value(parse_overrides(overrides[-1:])[-1][1], "--resume")
    restart: Restarts | None = None
    # Before the launcher, which prints much of its own. The ranks check together, in `main`.
    if num_gpus is not None and not is_rank():
        from zerokit.files import explain_file_errors
        from zerokit.recipe.load import load_recipe
        from zerokit.training.folder import check_earlier
        from zerokit.training.main import check_recipe_quickly
        from zerokit.training.trackers import trackers
        from zerokit.training.upload import check_upload

        if recipe is not None and (reason := unreadable_reason(recipe)) is not None:
            raise LaunchError(f"{reason}, and each rank reads it", where=recipe, hint="Save the recipe to a file")
        loaded = load_recipe(recipe, overrides)
        with explain_file_errors():
            check_recipe_quickly(loaded)
        if push_to_hub is not None:
            check_upload(push_to_hub)
        if preview is None:
            from zerokit.training.restarts import Restarts
            from zerokit.training.resume import check_resume_value, describe_finished_run

            trackers(loaded)
            key = ("training", "resume_from_checkpoint")
            check_resume_value(loaded.recipe.training.get(key[1]), loaded.where(*key))
            if (line := describe_finished_run(loaded)) is not None:
                note(line)
                return
            check_earlier(loaded, force=force)
            restart = Restarts(loaded, retries)
    elif retries and not is_rank():
        raise LaunchError(
            "is for the launcher that --num-gpus starts",
            where="--retries",
            hint="Add --num-gpus; torchrun has --max-restarts, with --resume auto",
        )
    again = (lambda: "Start it again") if restart is None else restart.how_to_continue
    start_ranks(num_gpus, master_port, "train", context.obj, again=again, save_within=save_within, restart=restart)
    from zerokit.distributed.group import leave
    from zerokit.training.main import main

    code = main(
        recipe,
        overrides,
        stuck_after=stuck_after,
        save_within=save_within,
        previewed=preview,
        push_to_hub=push_to_hub,
        force=force,
        trust_checkpoint=trust_checkpoint,
        verify=not no_verify,
    )
    leave(code)


_OF_TRAINING = ("force", "resume", "retries", "trust_checkpoint", "no_verify", "push_to_hub", "save_within")
"""Parameters that change only a run that trains."""
_ALL_BUT_PRINT_RECIPE = ("recipe", *_OF_TRAINING, "preview", "stuck_after", "num_gpus", "master_port")


def _pass_over_none(context: typer.Context, option: str, does: str, others: Sequence[str]) -> None:
    """Refuse an option that would change nothing beside another. RecipeError if one of `others` is given."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in others and source is not None and source.name == "COMMANDLINE":
            raise RecipeError(f"would change nothing: {option} {does}", where=parameter.opts[0], hint="Leave it out")


def _refuse_misspelled(context: typer.Context) -> None:
    """Refuse an option that is nearly one of the command's own. All others override the recipe.

    Raises:
        RecipeError: there is such an option.
    """
    from zerokit.recipe.load import SHORTHANDS
    from zerokit.recipe.synonyms import full_name

    own = [name for parameter in context.command.params for name in parameter.opts]
    for word in context.args:
        option = word.partition("=")[0]
        name = option.removeprefix("--")
        if name == option or "." in name or name in SHORTHANDS or full_name(name) is not None:
            continue
        meant = nearest(option, [*own, *(f"--{short}" for short in SHORTHANDS)])
        if meant in own:
            hint = f"Did you mean '{meant}'? If not, give the section too, such as --training.{name}"
            raise RecipeError("unknown option", where=option, hint=hint)


def _starter(words: Sequence[str]) -> str:
    """The recipe to start from.

    Raises:
        RecipeError: an option beside ``--task.type`` and ``--peft.type`` would change nothing in it.
    """
    from zerokit.recipe.load import parse_overrides
    from zerokit.recipe.model import task_called
    from zerokit.recipe.starters import starter

    for word in words[:1]:
        if task := task_called(word):
            raise RecipeError(
                f"'{word}' belongs to no option",
                where="--print-recipe",
                hint=f"Write --print-recipe --task.type {task}",
            )
    asked = dict(parse_overrides(words))
    type_ = str(asked.pop(("task", "type"), "causal_lm"))
    adapter = asked.pop(("peft", "type"), None)
    for path in asked:
        raise RecipeError(
            "would change nothing: --print-recipe prints a recipe as it is",
            where=f"--{dotted(path)}",
            hint="Leave it out, and change the file; or give it to the run",
        )
    return starter(type_, None if adapter is None else str(adapter))
