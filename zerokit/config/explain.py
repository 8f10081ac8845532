"""pydantic's errors in plain words."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zerokit.config.base import AUTO
from zerokit.config.places import as_written, canonical, hint_for_unknown, sections
from zerokit.config.problem import Problem
from zerokit.config.removed import REMOVED_KEYS
from zerokit.documents import Document, KeyPath, dotted
from zerokit.errors import nearest

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list [...]",
    "dict_type": "a section {...}",
    "model_type": "a section {...}",
    "model_attributes_type": "a section {...}",
    "null": "a section {...}",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def explain(error: ValidationError, document: Document) -> list[Problem]:
    """All of `error` as problems of `document`, in the order of its lines."""
    problems = [_explain_one(detail, document) for detail in error.errors(include_url=False)]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.path))


def _explain_one(detail: ErrorDetails, document: Document) -> Problem:
    # Tags of unions stand in parentheses; they are no keys.
    path = tuple(key for key in detail["loc"] if not str(key).startswith("("))
    rule, message, hint = _in_words(detail, path, document)
    return Problem(path, message, hint, document.line(path), rule=rule)


def _in_words(detail: ErrorDetails, path: KeyPath, document: Document) -> tuple[str, str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx") or {}
    name = f"'{dotted(path[-1:])}'" if path else "the config"
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    if kind == "missing":
        section = dotted(path[:-1])
        return "missing-key", f"the key {name} is missing from '{section}'", f"Add it: {_why_needed(path)}"
    if kind == "invalid_key":
        return "bad-key", f"the key {name} is not a string", "Put it in double quotes"
    if value == AUTO:
        hint = f"Write a value, or remove the key{_default_in_words(path)}"
        return "unfilled-auto", f'{name} is "auto", which nobody fills in here', hint
    if kind in _EXPECTED:
        hint = _hint_for_type(kind, value, path)
        return "wrong-type", f"{name} must be {_EXPECTED[kind]}, not {_show(value)}", hint
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = f"{words} {context[key]:g}"
        return "out-of-range", f"{name} must be {bound}, not {_show(value)}", f"Write a number of {bound}"
    if kind == "literal_error":
        return _not_a_choice(name, value, path)
    return "bad-value", detail["msg"], str(context.get("hint", "Correct the value"))


def _unknown_key(path: KeyPath, document: Document) -> tuple[str, str, str]:
    key = path[-1]
    removed = REMOVED_KEYS.get(path)
    if removed is not None:
        feature, hint = removed
        return "removed-key", f"'{key}' is refused by DeepSpeed: {feature} was removed", hint
    first = canonical(path)
    if first != path and as_written(first, document.data) == first:
        message = f"'{key}' and '{first[-1]}' are two names of one key"
        return "duplicate-key", message, "Remove one of them"
    return "unknown-key", f"unknown key '{key}'", hint_for_unknown(path)


def _not_a_choice(name: str, value: Any, path: KeyPath) -> tuple[str, str, str]:
    choices = _choices(path)
    listed = ", ".join(json.dumps(choice) for choice in choices)
    message = f"{name} must be one of {listed}, not {_show(value)}"
    if isinstance(value, str):
        if any(value == str(choice) for choice in choices):
            return "wrong-type", message, "Remove the quotes"
        close = nearest(value, [str(choice) for choice in choices])
        return "bad-value", message, f"Did you mean '{close}'?" if close else "Write one of them"
    return "bad-value", message, "Write one of them"


def _choices(path: KeyPath) -> list[Any]:
    first = canonical(path)
    schema = sections()[first[:-1]].model_json_schema()
    found: list[Any] = []

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            found.extend(part.get("enum", []))
            if "const" in part:
                found.append(part["const"])
            for key in ("anyOf", "oneOf"):
                for option in part.get(key, []):
                    walk(option)

    walk(schema["properties"][first[-1]])
    return found


def _hint_for_type(kind: str, value: Any, path: KeyPath) -> str:
    if isinstance(value, str):
        if value.lower() == AUTO:
            return 'Write "auto" in lower case'
        if _is_plain(value.lower()):
            return "Remove the quotes"
    if value is None:
        required = path[-1:] == ("type",) or path[-2:] == ("scheduler", "params")
        return f"Write {_EXPECTED[kind]}" + (
            "" if required else f", or remove the key{_default_in_words(path)}"
        )
    if kind == "bool_type" and isinstance(value, int | float) and value in (0, 1):
        return f"Write {json.dumps(bool(value))}"
    if kind in ("model_type", "dict_type"):
        if isinstance(value, bool) and "enabled" in _fields(path):
            return f'Write {{"enabled": {json.dumps(value)}}}'
        if path == ("zero_optimization",):
            return 'Write {"stage": ' + (str(value) if value in (0, 1, 2, 3) else "2") + "}"
    return f"Write {_EXPECTED[kind]}"


def _is_plain(text: str) -> bool:
    try:
        return isinstance(json.loads(text), bool | int | float)
    except ValueError:
        return False


def _fields(path: KeyPath) -> set[str]:
    model = sections().get(canonical(path))
    return set(model.model_fields) if model else set()


def _default_in_words(path: KeyPath) -> str:
    if not path:
        return ""
    first = canonical(path)
    model = sections().get(first[:-1])
    field = model.model_fields.get(str(first[-1])) if model else None
    if field is None or field.is_required() or field.default_factory is not None or field.default is None:
        return ""
    return f" for DeepSpeed's default, {json.dumps(field.default)}"


def _why_needed(path: KeyPath) -> str:
    if path[-1] == "type":
        return f"without it DeepSpeed ignores the whole section '{dotted(path[:-1])}'"
    return "without it DeepSpeed fails when it starts"


def _show(value: Any) -> str:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    text = json.dumps(value, default=str)
    text = text if len(text) <= 40 else f"{text[:36]}..."
    return f"the string {text}" if isinstance(value, str) else text
