"""What is wrong with a recipe: the models' errors with place and hint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zerokit.documents import KeyPath, dotted, has_value
from zerokit.findings import Finding
from zerokit.recipe.model import task_hint
from zerokit.recipe.synonyms import key_meant, meant
from zerokit.tables import table_of
from zerokit.validation import error_sort_key, format_value, wrong_value

_UNSUPPORTED: Mapping[str, tuple[str, str]] = table_of(__file__)
"""Keys of `parallel` that people know from elsewhere -> why they are refused, and a hint."""


def problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Finding]:
    """All that is wrong, unknown keys first, one problem per place.

    A key is not missing where the hint of an unknown one names it: that one is to be renamed.
    """
    found: dict[KeyPath, list[ErrorDetails]] = {}  # a union reports each branch
    renamed: set[str] = set()
    for details in sorted(error.errors(include_url=False), key=error_sort_key):
        path = _real_path(details, data)
        if details["type"] == "extra_forbidden":
            renamed.add(f"{key_meant(dotted(path[:-1]), str(path[-1]), _keys_at(model, path[:-1]))}.")
        if details["type"] == "missing" and any(one.startswith(f"{dotted(path)}.") for one in renamed):
            continue
        found.setdefault(path, []).append(details)
    # Of a union keep the branch that went deepest into the document.
    deepest = [
        _problem(branches, path, model)
        for path, branches in found.items()
        if not any(len(other) > len(path) and other[: len(path)] == path for other in found)
    ]
    return sorted(deepest, key=lambda problem: not problem.message.startswith("unknown key"))


def _problem(branches: list[ErrorDetails], path: KeyPath, model: type[BaseModel]) -> Finding:
    details = branches[0]
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden" and path[0] == "parallel" and path[-1] in _UNSUPPORTED:
        return Finding(path, *_UNSUPPORTED[str(path[-1])])
    if kind == "extra_forbidden":
        siblings = _keys_at(model, path[:-1])
        hint = meant(dotted(path[:-1]), str(path[-1]), siblings)
        return Finding(path, f"unknown key '{path[-1]}'", hint)
    if kind == "invalid_key":
        return Finding(path, f"the key {format_value(value)} is not text", "Put it in quotes")
    if kind == "missing":
        return Finding(path, f"the key '{path[-1]}' is missing", "Add it")
    if path == ("task", "type") and kind == "literal_error":
        return Finding(path, f"{value!r} is not a choice here", task_hint(value))
    if kind == "value_error":
        return Finding(path, str(details.get("ctx", {}).get("error", details["msg"])), "Correct it")
    return Finding(path, *wrong_value(branches, str(path[-1]) if path else "the recipe"))


def _real_path(details: ErrorDetails, data: Any) -> KeyPath:
    """`loc` without the names of union branches, which are not in the document."""
    if details["type"] == "invalid_key":
        return tuple(details["loc"][:-1])  # positions are kept for keys that are text
    path: list[str | int] = []
    node = data
    for at, key in enumerate(details["loc"]):
        if has_value(node, (key,)):
            path.append(key)
            node = node[key]
        elif details["type"] == "missing" and at == len(details["loc"]) - 1:
            path.append(key)
    return tuple(path)


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    models = [model]
    for key in path:
        if isinstance(key, int):
            continue
        fields = [found.model_fields[key] for found in models if key in found.model_fields]
        models = [inner for field in fields for inner in _models_in(field.annotation)]
    keys: list[str] = []
    for found in models:
        keys += [field.alias or name for name, field in found.model_fields.items()]
    return keys


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
