"""``zerokit train``: fine-tune, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerokit.cli.on_ranks import LocalRank, MasterPort, NumGpus, StuckAfter, is_main, start_ranks
from zerokit.distributed.preemption import SAVE_WITHIN
from zerokit.distributed.ranks import STUCK_AFTER
from zerokit.recipe.load import load_recipe, parse_overrides
from zerokit.recipe.starters import starter


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
    trust_checkpoint: Annotated[
        bool,
        typer.Option(
            "--trust-checkpoint",
            help="Resume from a checkpoint whose pickles load what zerokit does not know: only one's own.",
        ),
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Resume without comparing the checkpoint's checksums.")
    ] = False,
    print_recipe: Annotated[
        bool,
        typer.Option(
            "--print-recipe",
            help="Print a recipe for fine-tuning, to be changed, and leave; --task.type TYPE: for that task.",
        ),
    ] = False,
    preview: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="COUNT",
            help="Print so many examples as the model will see them, what is trained on marked, and leave.",
        ),
    ] = None,
    stuck_after: StuckAfter = STUCK_AFTER,
    save_within: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="When asked to leave (SIGTERM, Ctrl-C, the launcher's end), save and leave in so long; "
            "0: leave at once.",
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
    --deepspeed, by a ds_config. --precision and --matmul_precision are keys of no section.
    """
    if print_recipe:
        if is_main():
            asked = dict(parse_overrides(context.args))
            typer.echo(starter(str(asked.get(("task", "type"), "causal_lm"))), nl=False)
        return
    if num_gpus is not None:
        load_recipe(recipe, context.args)  # before the launcher, which says much of its own
    start_ranks(num_gpus, master_port, "train", context.obj)
    from zerokit.distributed.group import leave
    from zerokit.training.main import main

    options = {"force": force, "trust_checkpoint": trust_checkpoint, "verify": not no_verify}
    limits = {"stuck_after": stuck_after, "save_within": save_within}
    leave(main(recipe, context.args, **limits, previewed=preview, **options))
