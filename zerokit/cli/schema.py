"""``zerokit schema``: JSON Schema for editors."""

from __future__ import annotations

from pathlib import Path

from zerokit.cli.command import described
from zerokit.cli.output import not_stdout, print_json
from zerokit.files import json_text, write_file


@described("schema", output=not_stdout)
def schema(recipe: bool = False, output: Path | None = None, force: bool = False) -> None:
    """Print the JSON Schema (draft 2020-12) of a ds_config, by which editors complete and check keys."""
    if recipe:
        from zerokit.recipe.schema import json_schema
    else:
        from zerokit.config.schema import json_schema

    data = json_schema()
    if output is None:
        print_json(data)
    else:
        write_file(output, json_text(data), force=force, follow_links=True)
