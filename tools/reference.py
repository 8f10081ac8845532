"""Reference pages that are generated from code: commands, recipe keys and ds_config keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import typer

from zerokit.cli.main import command_line
from zerokit.config.schema import json_schema as ds_config_schema
from zerokit.recipe.schema import json_schema as recipe_schema


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in the site."""
    return {
        "reference/commands.md": commands(),
        "reference/recipe.md": keys("Recipe keys", _without(recipe_schema(), ds_config_schema())),
        "reference/ds_config.md": keys("ds_config keys", ds_config_schema()),
    }


def _without(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without the sections that `other` has, which have a page of their own."""
    sections = {name: section for name, section in schema["$defs"].items() if name not in other["$defs"]}
    return {**schema, "$defs": sections}


def commands() -> str:
    """Return a section for each command with its arguments and options."""
    root = typer.main.get_command(command_line())
    parts = ["# Commands", "`zerokit COMMAND --help` prints the same."]
    parts += [_command(path, command) for path, command in _walk(root, "zerokit")]
    return "\n\n".join(parts) + "\n"


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield path, command
        return
    for name in sorted(subcommands):
        if not subcommands[name].hidden:
            yield from _walk(subcommands[name], f"{path} {name}")


def _command(path: str, command: Any) -> str:
    context = click.Context(command, info_name=path)
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        names = (parameter.name or "").upper() if is_argument else ", ".join(parameter.opts)
        record = parameter.get_help_record(context)
        rows.append(f"| `{names}` | {_cell(record[1] if record else parameter.help or '')} |")
    text = re.sub(r"[\b]", "", command.help or "").strip()
    return "\n\n".join([f"## {path}", text, "\n".join(rows)])


def keys(title: str, schema: dict[str, Any]) -> str:
    """Return a table of the keys of each section of a JSON Schema."""
    parts = [f"# {title}", _cell(schema.get("description", "")), _table(schema)]
    for name, section in schema.get("$defs", {}).items():
        if section.get("properties"):
            parts += [f"## {name}", _cell(section.get("description", "")), _table(section)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(section: dict[str, Any]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, key in section["properties"].items():
        value = key.get("default")
        default = "" if value is None or isinstance(value, dict) else f"`{value}`"
        rows.append(f"| `{name}` | {_type(key)} | {_cell(default)} | {_cell(key.get('description', ''))} |")
    return "\n".join(rows)


def _type(key: dict[str, Any]) -> str:
    """Return the type of a key in words; a section links to its table."""
    if "$ref" in key:
        name = key["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in key:
        types = [_type(one) for one in key["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(filter(None, types)))
    if "enum" in key:
        return ", ".join(f"`{value}`" for value in key["enum"])
    if "const" in key:
        return f"`{key['const']}`"
    found = key.get("type", "")
    return ", ".join(found) if isinstance(found, list) else str(found)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
