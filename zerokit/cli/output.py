"""What a command prints: its form, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from zerokit import choices
from zerokit.errors import visible_json

OutputFormat = Annotated[choices.OutputFormat, typer.Option("--format", help="Form of what is printed.")]


Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]

STDOUT = Path("-")
"""What people name to have a file on standard output."""


def not_stdout(output: Path | None) -> Path | None:
    """The callback of an ``-o`` without which a command writes to standard output: ``-o -`` is the same."""
    return None if output == STDOUT else output


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write there, not to stdout.", callback=not_stdout),
]


def json_on_stdout(output: Path | None, output_format: choices.OutputFormat) -> bool:
    """Whether the JSON of a command that can write it beside its text goes to standard output, alone."""
    return output == STDOUT or output_format == "json"


def print_json(data: Any) -> None:
    """Print one JSON value on stdout."""
    typer.echo(visible_json(to_json(data)), nl=False)


def to_json(data: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
