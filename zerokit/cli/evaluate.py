"""``zerokit evaluate``: measure a saved model, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from pathlib import Path

import typer

from zerokit import choices
from zerokit.cli.command import described
from zerokit.cli.on_ranks import is_rank, start_ranks
from zerokit.distributed.ranks import STUCK_AFTER


@described("evaluate")
def evaluate(
    context: typer.Context,
    model: str,
    data: str,
    recipe: Path | None = None,
    batch_size: int = 8,
    output_format: choices.OutputFormat = "text",
    stuck_after: float = STUCK_AFTER,
    num_gpus: int | None = None,
    master_port: int | None = None,
    local_rank: int | None = None,
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
    start_ranks(num_gpus, master_port, "evaluate", context.obj, again=lambda: "Start it again")
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
