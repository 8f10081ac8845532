"""``zerokit explain``: the meaning of a rule, or of a ds_config key."""

from __future__ import annotations

from typing import Annotated

import typer

from zerokit.cli import completion


def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY|RULE|TOPIC]",
            autocompletion=completion.explained,
            help="A key such as zero_optimization.stage or overlap_comm, the id of a rule, or a topic "
            "such as moe or long context.",
            show_default="all rules, a line each",
        ),
    ] = None,
) -> None:
    """Explain a ds_config key, a rule of zerokit check, or a topic."""
    from zerokit.lint import explain as explaining
    from zerokit.reporting.terminal import show, show_markdown, show_rows

    if not words:
        show_rows(explaining.overview())
        how = "For details: zerokit explain RULE, zerokit explain KEY, or zerokit explain TOPIC"
        show(["", f"Topics: {explaining.topic_names()}", "", how])
        return
    show_markdown(explaining.explain(" ".join(words)))
