"""What a command prints: its form, and JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from zerokit import choices

OutputFormat = Annotated[choices.OutputFormat, typer.Option("--format", help="Form of what is printed.")]


def print_json(data: Any) -> None:
    """Print one JSON value on stdout."""
    typer.echo(to_json(data), nl=False)


def to_json(data: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
