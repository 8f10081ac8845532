"""``zerokit explain``: the meaning of a rule, or of a ds_config key."""

from __future__ import annotations

from typing import Annotated

import typer

from zerokit.cli import completion


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY|RULE]",
            autocompletion=completion.explained,
            help="A key such as zero_optimization.stage or overlap_comm, or the id of a rule.",
            show_default="all rules, a line each",
        ),
    ] = None,
) -> None:
    """Explain a ds_config key, or a rule of zerokit check."""
    from zerokit.lint import explain as explaining
    from zerokit.reporting.terminal import show_markdown, show_rows

    if name is None:
        show_rows(explaining.overview())
        typer.echo("\nFor details: zerokit explain RULE, or zerokit explain KEY")
        return
    show_markdown(explaining.explain(name))
