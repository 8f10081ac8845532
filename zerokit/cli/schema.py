"""``zerokit schema``: JSON Schema for editors."""

from __future__ import annotations

from zerokit.cli.output import print_json


def schema() -> None:
    """Print the JSON Schema of a ds_config, which editors use to complete and to check."""
    from zerokit.config.schema import json_schema

    print_json(json_schema())
