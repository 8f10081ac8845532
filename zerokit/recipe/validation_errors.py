"""A recipe's validation errors, told as a person needs them: where, what, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from zerokit.documents import dotted, has_value
from zerokit.findings import Finding
from zerokit.recipe.also_called import key_meant, meant
from zerokit.recipe.model import task_hint
from zerokit.units import in_digits, quantity

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    from zerokit.documents import KeyPath

_EXPECTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}

_WHOLE = ("int_type", "int_parsing", "int_from_float")
_CHOICES = ("literal_error", "enum")
_FLOATS = ("float_type", "float_parsing")
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
"""Kind of error -> what its context calls the bound, and how people say it."""
_OF_TOKENS = ("seq_len", "target_len")


def problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Finding]:
    """All that is wrong, unknown keys first, one problem per place.

    A key is not missing where the hint of an unknown one names it: that one is to be renamed.

    Args:
        error: what ``model.model_validate(data)`` raised.
        model: the root model.
        data: the document that was validated.
    """
    found: dict[KeyPath, list[ErrorDetails]] = {}  # a union reports each branch
    renamed: set[str] = set()
    for details in sorted(error.errors(include_url=False), key=_order):
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
        if not any(_is_below(other, path) for other in found)
    ]
    return sorted(deepest, key=lambda problem: not problem.message.startswith("unknown key"))


def _order(details: ErrorDetails) -> tuple[bool, bool]:
    """Unknown keys tell of those that are missing, and what has the right type of what has not."""
    return details["type"] in _EXPECTED, details["type"] == "missing"


def _problem(branches: list[ErrorDetails], path: KeyPath, model: type[BaseModel]) -> Finding:
    details = branches[0]
    kind, value = details["type"], details["input"]
    if kind == "extra_forbidden":
        siblings = _keys_at(model, path[:-1])
        hint = meant(dotted(path[:-1]), str(path[-1]), siblings)
        return Finding(path, f"unknown key '{path[-1]}'", hint)
    if kind == "invalid_key":
        return Finding(path, f"the key {_describe(value)} is not text", "Put it in quotes")
    if kind == "missing":
        return Finding(path, f"the key '{path[-1]}' is missing", "Add it")
    if path == ("task", "type") and kind == "literal_error":
        return Finding(path, f"{value!r} is not a choice here", task_hint(value))
    if kind == "value_error":
        return Finding(path, str(details.get("ctx", {}).get("error", details["msg"])), "Correct it")
    return Finding(path, *_wrong_value(branches, str(path[-1]) if path else "the recipe"))


def wrong_type(error: ValidationError, name: str) -> tuple[str, str]:
    """What is wrong with a value that is of none of the types of a library's key, and the hint.

    Args:
        error: what a TypeAdapter of them raised.
        name: the key's.
    """
    branches = error.errors(include_url=False)
    # What is in a list, or a mapping, says more than that it is no text.
    depth = max(len(one["loc"]) for one in branches)
    return _wrong_value(sorted((one for one in branches if len(one["loc"]) == depth), key=_order), name)


def _wrong_value(branches: list[ErrorDetails], name: str) -> tuple[str, str]:
    """What is wrong, and the hint, by what each branch of its type says; those of the right type first."""
    details = branches[0]
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    expected = dict.fromkeys(_EXPECTED[one["type"]] for one in branches if one["type"] in _EXPECTED)
    if "a number" in expected:
        expected.pop("a whole number", None)
    words = " or ".join(expected)
    if kind in _CHOICES:
        choices = ", ".join(one["ctx"]["expected"] for one in branches if one["type"] in _CHOICES)
        return f"{value!r} is not a choice here", f"Write {words + ', or ' if words else ''}{choices}"
    if kind in _EXPECTED:
        # The comma of a number that need not be whole may be one of decimals.
        is_clear = kind in _WHOLE or (kind in _FLOATS and "," not in str(value))
        number = in_digits(str(value), of_tokens=name in _OF_TOKENS) if is_clear else None
        hint = "Change the value" if number is None else f"Write {number}"
        return f"expected {words}, found {_describe(value)}", hint
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"{name} is {_describe(value)}", f"Make it {words} {context[bound]}"
    if kind == "too_short":
        least = quantity(context["min_length"], "item")
        return f"{name} is {_describe(value)} of {context['actual_length']}", f"Give it at least {least}"
    return f"{_describe(value)} {details['msg'].removeprefix('Input ')}", "Change the value"


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
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _is_below(path: KeyPath, parent: KeyPath) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{value}'" if len(value) <= 40 else f"the text '{value[:37]}...'"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return str(value)
