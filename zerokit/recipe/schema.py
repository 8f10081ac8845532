"""JSON Schema of a recipe, for editors."""

from collections.abc import Callable
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
    return {"$schema": _DRAFT, **_changed(schema, "description", _line)}


def _changed(part: Any, key: str, change: Callable[[str], str]) -> Any:
    """`part` with the text of each `key` changed, at any depth."""
    if isinstance(part, dict):
        return {
            name: change(value) if name == key and isinstance(value, str) else _changed(value, key, change)
            for name, value in part.items()
        }
    return [_changed(item, key, change) for item in part] if isinstance(part, list) else part


def _renamed(part: Any) -> Any:
    """`part` with references to the definitions of the ds_config schema under their names here."""
    return _changed(part, "$ref", lambda reference: reference.replace("#/$defs/", "#/$defs/ds_", 1))


def _line(text: str) -> str:
    return " ".join(text.split())
