"""The JSON that a command prints or writes."""

from __future__ import annotations

import json
from typing import Any

import typer


def print_json(data: Any) -> None:
    """Print one JSON value on stdout."""
    typer.echo(to_json(data), nl=False)


def to_json(data: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
