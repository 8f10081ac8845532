"""JSON Schema of a recipe, for editors."""

from __future__ import annotations

from typing import Any, get_args

from zerokit.config.schema import json_schema as ds_config_schema
from zerokit.recipe.model import PeftType, Recipe

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of :class:`Recipe` in draft 2020-12; an inline ds_config is checked by its own schema.

    `training`, `peft` and `generation` take the keys of other libraries, which are not listed here.
    """
    schema = Recipe.model_json_schema()
    schema["title"] = "zerokit recipe"
    definitions = schema.setdefault("$defs", {})
    inline = ds_config_schema()
    del inline["$schema"]
    definitions |= {f"ds_{name}": _renamed(part) for name, part in inline.pop("$defs", {}).items()}
    definitions["ds_config"] = _renamed(inline)
    sections = schema["properties"]
    # `model: org/name` is short for `model: {path: org/name}`.
    sections["model"] = {
        "anyOf": [{"type": "string"}, {"$ref": "#/$defs/ModelSection"}],
        "description": "What is trained: a Hub id or a folder, or a section that says more.",
    }
    sections["peft"] = {
        "anyOf": [
            {"type": "object", "properties": {"type": {"enum": list(get_args(PeftType)), "default": "lora"}}},
            {"type": "null"},
        ],
        "description": _line(sections["peft"]["description"]),
        "default": None,
    }
    sections["deepspeed"] = {
        "anyOf": [{"type": "string"}, {"$ref": "#/$defs/ds_config"}, {"type": "null"}],
        "description": _line(sections["deepspeed"]["description"]),
        "default": None,
    }
    return {"$schema": _DRAFT, **_with_plain_descriptions(schema)}


def _renamed(part: Any) -> Any:
    """`part` with references to the definitions of the ds_config schema under their names here."""
    if isinstance(part, dict):
        return {
            key: value.replace("#/$defs/", "#/$defs/ds_", 1)
            if key == "$ref" and isinstance(value, str)
            else _renamed(value)
            for key, value in part.items()
        }
    return [_renamed(item) for item in part] if isinstance(part, list) else part


def _with_plain_descriptions(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _line(value)
            if key == "description" and isinstance(value, str)
            else _with_plain_descriptions(value)
            for key, value in part.items()
        }
    return [_with_plain_descriptions(item) for item in part] if isinstance(part, list) else part


def _line(text: str) -> str:
    return " ".join(text.split())
