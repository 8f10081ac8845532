"""``zerokit explain``: what a rule finds, or what a key of a ds_config does."""

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
    """Say what a key of a ds_config does, or what a rule of zerokit check finds and why."""
    from zerokit.lint import explain as explaining
    from zerokit.reporting.terminal import show_markdown, show_rows

    if name is None:
        show_rows(explaining.overview())
        typer.echo("\nzerokit explain RULE or KEY says more of one")
        return
    show_markdown(explaining.explain(name))
