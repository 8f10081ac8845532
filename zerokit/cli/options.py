"""Typer options for a dataclass that describes its options without Typer."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from zerokit.cli.command import declaration
from zerokit.cli.gpu_options import memory_size
from zerokit.errors import ZerokitError
from zerokit.rehearsal.options import REPEATED
from zerokit.units import parse_count, parse_network, parse_seconds

_Number = TypeVar("_Number", int, float)


def option_parser(parse: Callable[[str], _Number]) -> Callable[[str, str], _Number]:
    """A parser of `zerokit.units`, whose errors name the option."""

    def read(text: str, option: str) -> _Number:
        try:
            return parse(text)
        except ZerokitError as error:
            raise ZerokitError(error.message, where=option, hint=error.hint) from None

    return read


seconds = option_parser(parse_seconds)
network = option_parser(parse_network)


def count(text: str | None, option: str) -> int | None:
    """Read a count of at least 1. ZerokitError if it is none."""
    number = None if text is None else option_parser(parse_count)(text, option)
    if number == 0:
        raise ZerokitError("0 is not positive", where=option, hint="Give more than 0")
    return number


def words(text: str, option: str) -> list[str]:
    """Split a text as a shell does."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ZerokitError(str(error), where=f"{option} {text}", hint="Close the quotation") from None


def assignments(texts: list[str], option: str) -> dict[str, Any]:
    """Read dotted keys with their values, which may be JSON."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise ZerokitError(
                f"'{text}' is not KEY=VALUE", where=option, hint="Write it like zero_optimization.stage=3"
            )
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "SIZE": memory_size,
    "TIME": seconds,
    "GBIT": network,
    "WORDS": words,
    "KEY=VALUE": assignments,
}
"""Parsers of options, by metavar."""


Described = Mapping[str, tuple[Any, dict[str, Any]]]
"""The type of each option, and its row of `rehearsal/options.json`."""


def parameters_of(options: type, described: Described) -> list[inspect.Parameter]:
    """Return the parameters from which Typer makes arguments and options."""
    defaults = {one.name: one.default for one in fields(options)}
    return [_parameter(name, kind, row, defaults[name]) for name, (kind, row) in described.items()]


def values_of(described: Described, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line, with their texts read.

    Raises:
        ZerokitError: a text cannot be read.
    """
    found = {}
    for name, (_, row) in described.items():
        value = given[name]
        if value is not None:
            parse = _PARSERS.get(row.get("metavar", ""))
            found[name] = value if parse is None else parse(value, flag_of(name, row))
    return found


def flag_of(name: str, row: Mapping[str, Any]) -> str:
    """The option's name on the command line."""
    flag: str = row.get("flags", ["--" + name.replace("_", "-")])[0]
    return flag


def _parameter(name: str, kind: Any, row: Mapping[str, Any], default: Any) -> inspect.Parameter:
    is_argument, metavar = row.get("argument", False), row.get("metavar")
    plain = [one for one in get_args(kind) if one is not type(None)] if isinstance(kind, UnionType) else [kind]
    text = Path if Path in plain and metavar == "FILE" else str if str in plain else plain[0]
    if metavar in _PARSERS or get_origin(text) not in (None, Literal):
        text = list[str] if is_argument or metavar in REPEATED else str
    has_value = isinstance(default, (int, str)) and metavar not in _PARSERS
    annotation: Any = text if has_value or default is MISSING else text | None
    shown = not is_argument and row.get("default", has_value and not isinstance(default, bool))
    flags = () if is_argument else (flag_of(name, row),)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default if has_value else None,
        annotation=Annotated[annotation, declaration(**{**row, "flags": flags, "default": shown})],
    )
