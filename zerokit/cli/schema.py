"""``zerokit schema``: JSON Schema for editors."""

from __future__ import annotations

from typing import Annotated

import typer

from zerokit.cli.output import Force, Output, print_json, to_json
from zerokit.files import write_file


def schema(
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the schema of a recipe instead.")] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a ds_config, by which editors complete and check keys."""
    if recipe:
        from zerokit.recipe.schema import json_schema
    else:
        from zerokit.config.schema import json_schema

    data = json_schema()
    if output is None:
        print_json(data)
    else:
        write_file(output, to_json(data), force=force, follow_links=True)
