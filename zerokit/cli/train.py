"""``zerokit train``: fine-tune, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zerokit.cli.on_ranks import LocalRank, MasterPort, NumGpus, StuckAfter, is_main, is_rank, start_ranks
from zerokit.console import note
from zerokit.distributed.preemption import SAVE_WITHIN
from zerokit.distributed.ranks import STUCK_AFTER
from zerokit.documents import dotted
from zerokit.errors import LaunchError, RecipeError, nearest

if TYPE_CHECKING:
    from zerokit.training.restarts import Restarts


def train(
    context: typer.Context,
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The run: model, data, task, peft, training, deepspeed, generation."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace the model of an earlier run in the output folder; set its checkpoints aside.",
        ),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="auto|DIR",
            help="Continue from a checkpoint. auto: from the newest complete one; start if there is none; "
            "do nothing if the run has finished.",
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="With --num-gpus: how often to restart after a lost rank or connection, from the newest "
            "checkpoint.",
        ),
    ] = 0,
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            "--trust-checkpoint",
            help="Resume from a checkpoint of your own whose pickles load what zerokit does not know.",
        ),
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Resume without comparing the checkpoint's checksums.")
    ] = False,
    print_recipe: Annotated[
        bool,
        typer.Option(
            "--print-recipe",
            help="Print a recipe for fine-tuning, to edit, and exit; --task.type TYPE: for that task.",
        ),
    ] = False,
    preview: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Print COUNT examples, mark trained tokens, and exit.",
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Upload the trained model there, into a private repository if it has to be made.",
        ),
    ] = None,
    rehearsed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A report of 'zerokit rehearse -o FILE': its peak and step stand beside the run's.",
        ),
    ] = None,
    stuck_after: StuckAfter = STUCK_AFTER,
    save_within: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="When asked to stop (SIGTERM, Ctrl-C, the launcher's end), save and stop in so long; "
            "0: stop at once.",
        ),
    ] = SAVE_WITHIN,
    num_gpus: NumGpus = None,
    master_port: MasterPort = None,
    local_rank: LocalRank = None,
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
    again = "Continue with --resume auto"
    start_ranks(
        num_gpus, master_port, "train", context.obj, again=again, save_within=save_within, restart=restart
    )
    from zerokit.distributed.group import leave
    from zerokit.training.main import main

    code = main(
        recipe,
        overrides,
        stuck_after=stuck_after,
        save_within=save_within,
        previewed=preview,
        push_to_hub=push_to_hub,
        rehearsed=rehearsed,
        force=force,
        trust_checkpoint=trust_checkpoint,
        verify=not no_verify,
    )
    leave(code)


_OF_TRAINING = (
    "force",
    "resume",
    "retries",
    "trust_checkpoint",
    "no_verify",
    "push_to_hub",
    "rehearsed",
    "save_within",
)
"""Parameters that change only a run that trains."""
_ALL_BUT_PRINT_RECIPE = ("recipe", *_OF_TRAINING, "preview", "stuck_after", "num_gpus", "master_port")


def _pass_over_none(context: typer.Context, option: str, does: str, others: Sequence[str]) -> None:
    """Refuse an option that would change nothing beside another.

    Raises:
        RecipeError: one of `others` is given.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in others and source is not None and source.name == "COMMANDLINE":
            raise RecipeError(
                f"would change nothing: {option} {does}", where=parameter.opts[0], hint="Leave it out"
            )


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
