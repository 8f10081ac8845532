"""``zerokit diff``: compare the effect of two ds_configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zerokit import choices
from zerokit.cli.command import described
from zerokit.cli.output import print_json

if TYPE_CHECKING:
    from zerokit.config import DeepSpeedConfig
    from zerokit.resolving.diff import Difference, Side


@described("diff")
def diff(left: Path, right: Path, num_gpus: int | None = None, output_format: choices.OutputFormat = "text") -> None:
    """Print the settings in which two ds_configs differ. Exits with 1 if there are any.

    DeepSpeed's defaults are filled in, and old names and forms become the new ones. Comments, order and
    spelling (5e8, 500000000) do not count.
    """
    from zerokit.resolving.diff import differences

    found = differences(_load(left), _load(right), num_gpus=num_gpus)
    if output_format == "json":
        print_json(_as_data(left, right, found))
    else:
        _print_text(left, right, found)
    if any(difference.without_effect is None for difference in found):
        raise typer.Exit(1)


def _load(file: Path) -> DeepSpeedConfig:
    """Load a config, and print a line about each key that DeepSpeed ignores."""
    from zerokit.config.load import check_ds_config, is_passed_over, load_ds_config, read_ds_config
    from zerokit.console import note

    document = read_ds_config(file)
    config = load_ds_config(document, past_ignored=True)
    for finding in check_ds_config(document):
        if is_passed_over(finding, document):
            note(f"{document.where(finding.path)}: DeepSpeed does not read it. {finding.hint}")
    return config


def _as_data(left: Path, right: Path, found: tuple[Difference, ...]) -> dict[str, Any]:
    from zerokit.documents import dotted

    return {
        "a": str(left),
        "b": str(right),
        "equal": all(difference.without_effect is not None for difference in found),
        "differences": [
            {
                "path": dotted(difference.path),
                "a": vars(difference.left),
                "b": vars(difference.right),
                "without_effect": difference.without_effect,
            }
            for difference in found
        ],
    }


def _print_text(left: Path, right: Path, found: tuple[Difference, ...]) -> None:
    from zerokit.documents import dotted
    from zerokit.reporting.terminal import show, show_rows

    acting = [difference for difference in found if difference.without_effect is None]
    idle = [difference for difference in found if difference.without_effect is not None]
    if acting:
        rows = [(dotted(one.path), _show(one.left), _show(one.right)) for one in acting]
        show_rows(rows, ("key", str(left), str(right)))
    else:
        show([f"{left} and {right} do the same"])
    show(f"no effect: {dotted(one.path)}: {one.without_effect}" for one in idle)


def _show(side: Side) -> str:
    if side.given == "absent":
        return "(absent)"
    return json.dumps(side.value) + (" (default)" if side.given == "default" else "")
