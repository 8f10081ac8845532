"""Options and functions for the output of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from zerokit import choices
from zerokit.errors import visible_json
from zerokit.files import json_text

STDOUT = Path("-")
"""Name of standard output in -o."""


def not_stdout(output: Path | None) -> Path | None:
    """Callback for ``-o``: ``-o -`` is the same as no ``-o``."""
    return None if output == STDOUT else output


def json_on_stdout(output: Path | None, output_format: choices.OutputFormat) -> bool:
    """Whether JSON is the only output on stdout."""
    return output == STDOUT or output_format == "json"


def print_json(data: Any) -> None:
    typer.echo(visible_json(json_text(data)), nl=False)
