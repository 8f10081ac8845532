"""``zerokit explain``: what a rule finds, or what a key of a ds_config does."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY|RULE]",
            help="A key such as zero_optimization.stage or overlap_comm, or the id of a rule.",
            show_default="all rules, a line each",
        ),
    ] = None,
) -> None:
    """Say what a key of a ds_config does, or what a rule of zerokit check finds and why."""
    from zerokit.lint import explain as explaining

    if name is None:
        typer.echo(explaining.overview(), nl=False)
        return
    text = explaining.explain(name)
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.markdown import Markdown

    from zerokit.console import stdout

    stdout().print(Markdown(text))
