"""``zerokit evaluate``: measure a saved model, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zerokit.cli.on_ranks import LocalRank, MasterPort, NumGpus, StuckAfter, is_rank, start_ranks
from zerokit.cli.output import OutputFormat
from zerokit.distributed.ranks import STUCK_AFTER


def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A Hub id, or the folder of a model, an adapter, a run or its checkpoint-N.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="Examples, as data.train of a recipe names them.", show_default=False
        ),
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The recipe of the model.", show_default="that of its run, if it is there"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Examples per rank at a time.")] = 8,
    output_format: OutputFormat = "text",
    stuck_after: StuckAfter = STUCK_AFTER,
    num_gpus: NumGpus = None,
    master_port: MasterPort = None,
    local_rank: LocalRank = None,
) -> None:
    """Measure a saved model on data: the loss, and the metrics that training reports for its task.

    Each rank has a full copy of the model and a share of the examples. Every token (or example) has the same
    weight, so the figures do not depend on the number of ranks.

    All other options override one value of the recipe each: --task.type seq2seq, --task.seq_len 1024,
    --data.columns.prompt question, --precision bf16.
    """
    from zerokit.training.evaluation import check_before_start, main

    if num_gpus is not None and not is_rank():
        check_before_start(model, data, recipe, context.args)
    start_ranks(num_gpus, master_port, "evaluate", context.obj, again="Start it again")
    from zerokit.distributed.group import leave

    code = main(
        model,
        data,
        recipe,
        context.args,
        batch_size=batch_size,
        as_json=output_format == "json",
        stuck_after=stuck_after,
    )
    leave(code)
