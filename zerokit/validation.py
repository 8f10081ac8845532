"""Messages and hints for pydantic's errors, for ds_configs, recipes and options."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from zerokit.errors import ArgumentError, ConfigError, nearest
from zerokit.units import interpret_number, quantity

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping"),
    "null": "a mapping",
    "none_required": "null",
}
"""Expected value by type of error."""

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
"""Words by type of error, and the name of the bound in the error's context."""
_CHOICES = ("literal_error", "enum")
_TOKEN_COUNTS = ("seq_len", "target_len")
_TYPES = {
    int: EXPECTED["int_type"],
    float: EXPECTED["float_type"],
    bool: "True or False",
    str: EXPECTED["string_type"],
    Path: "a path",
    Mapping: "a dict",
    dict: "a dict",
    tuple: "a tuple",
    list: EXPECTED["list_type"],
    Sequence: EXPECTED["list_type"],
    NoneType: "None",
}
"""Words for the types of arguments."""
_LONGEST = 40

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_checked_types(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, which refuses arguments of other names and types than its signature has.

    Raises:
        ArgumentError: by the function, for arguments that are unknown or missing.
        ConfigError: by the function, for the first argument of another type.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: _P.args, **given: _P.kwargs) -> _R:
        bound = bind_arguments(function.__name__, signature, *arguments, **given)
        # Whole numbers of numpy and pandas become Python's.
        bound.arguments |= {name: int(value) for name, value in bound.arguments.items() if _is_foreign(value)}
        check_types(bound.arguments, get_type_hints(function))
        return function(*bound.args, **bound.kwargs)

    return checked


def bind_arguments(name: str, signature: inspect.Signature, *arguments: Any, **given: Any) -> inspect.BoundArguments:
    """The arguments of a call by name. ArgumentError if one is unknown, missing or given twice."""
    try:
        return signature.bind(*arguments, **given)
    except TypeError as error:
        known = signature.parameters
        meant = [nearest(one, known) for one in given if one not in known][:1]
        hint = f"Did you mean '{meant[0]}'?" if any(meant) else None
        raise ArgumentError(f"{name}() {error}", hint=hint) from None


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any], where: str = "") -> None:
    """Raise ConfigError for the first value that is not of its type, whatever dicts and tuples have in them.

    Args:
        where: what comes before a name in the message.
    """
    for name, value in values.items():
        types = _members(hints.get(name, Any))
        if not any(_is_of(value, one) for one in types):
            words = " or ".join(dict.fromkeys(_type_words(one) for one in types if one is not NoneType))
            shown = repr(value) if isinstance(value, bool | NoneType) else format_value(value)
            hint = _hint(words, value, name)
            raise ConfigError(f"expected {words}, found {shown}", where=where + name, hint=hint)


def _is_foreign(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, int)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_of(value: Any, hint: Any) -> bool:
    if hint is Any or isinstance(hint, TypeVar):
        return True
    kind = get_origin(hint) or hint
    if kind is Literal:  # another word is refused with what was probably meant
        return isinstance(value, str)
    if kind is Sequence:
        of_type = isinstance(value, Sequence) and not isinstance(value, str)
        return of_type and all(_is_of(item, one) for one in get_args(hint) for item in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if kind is float else kind)


def _type_words(hint: Any) -> str:
    kind = get_origin(hint) or hint
    if kind is Sequence and get_args(hint):
        return f"{_TYPES[kind]} of {_type_words(get_args(hint)[0])}"
    return "text" if kind is Literal else _TYPES.get(kind) or f"a {kind.__name__}"


def bound_words(kind: str, context: Mapping[str, Any]) -> str | None:
    """The bound that a number violates, such as "at least 1"; None for other errors."""
    if kind not in _BOUNDS:
        return None
    words, key = _BOUNDS[kind]
    limit = context[key]
    return f"{words} {limit:g}" if isinstance(limit, float) else f"{words} {limit}"


def format_value(value: Any, *, name_strings: bool = True) -> str:
    """A value as JSON, cut if it is long. "the string" distinguishes "8" from 8."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    text = json.dumps(value, default=str, ensure_ascii=False)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}..."
    return f"the string {text}" if isinstance(value, str) and name_strings else text


def wrong_value(error: ValidationError | Sequence[ErrorDetails], name: str) -> tuple[str, str]:
    """Message and hint for a wrong value.

    Args:
        error: of a model or a TypeAdapter, or the part of it about this value. A union has an error for each
            of its types.
        name: of the key.
    """
    if isinstance(error, Sequence):
        branches = list(error)
    else:
        branches = error.errors(include_url=False)
        # An error inside a list or mapping is more precise than 'expected text'.
        depth = max(len(branch["loc"]) for branch in branches)
        branches = sorted((branch for branch in branches if len(branch["loc"]) == depth), key=error_sort_key)
    kind, value, context = branches[0]["type"], branches[0]["input"], branches[0].get("ctx", {})
    expected = dict.fromkeys(EXPECTED[one["type"]] for one in branches if one["type"] in EXPECTED)
    if "a number" in expected:
        expected.pop("a whole number", None)
    words = " or ".join(expected)
    if kind in _CHOICES:
        choices = ", ".join(one["ctx"]["expected"] for one in branches if one["type"] in _CHOICES)
        return f"{value!r} is not a choice here", f"Write {words + ', or ' if words else ''}{choices}"
    if kind in EXPECTED:
        return f"expected {words}, found {format_value(value)}", _hint(EXPECTED[kind], value, name)
    if (limit := bound_words(kind, context)) is not None:
        return f"{name} is {format_value(value)}", f"Make it {limit}"
    if kind == "too_short":
        least = quantity(context["min_length"], "item")
        return f"{name} has {quantity(context['actual_length'], 'item')}", f"Give it at least {least}"
    return f"{format_value(value)} {branches[0]['msg'].removeprefix('Input ')}", "Change the value"


def error_sort_key(details: ErrorDetails) -> tuple[bool, bool]:
    """Sort key: unknown keys before missing ones, and the branch of the right type first."""
    return details["type"] in EXPECTED, details["type"] == "missing"


def _hint(expected: str, value: Any, name: str) -> str:
    # In a number that need not be whole, a comma may be a decimal comma.
    is_clear = expected == "a whole number" or (expected == "a number" and "," not in str(value))
    number = interpret_number(str(value), of_tokens=name in _TOKEN_COUNTS) if is_clear else None
    return "Change the value" if number is None else f"Write {number}"
