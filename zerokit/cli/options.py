"""Typer options for a dataclass that describes its options without Typer."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from zerokit.cli.gpu_options import memory_size
from zerokit.errors import ZerokitError
from zerokit.rehearsal.options import REPEATED

if TYPE_CHECKING:
    from zerokit.rehearsal.options import Option


def seconds(text: str, option: str) -> float:
    """Read a time such as ``5min``."""
    from zerokit.units import parse_seconds

    try:
        return parse_seconds(text)
    except ZerokitError as error:
        raise ZerokitError(error.message, where=option, hint=error.hint) from None


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
    "WORDS": words,
    "KEY=VALUE": assignments,
}
"""Parsers of options, by metavar."""


def parameters_of(
    options: type,
    described: Mapping[str, tuple[Any, Option]],
    completions: Mapping[str, Callable[[str], list[str]]],
) -> list[inspect.Parameter]:
    """Return the parameters from which Typer makes arguments and options.

    Args:
        options: the dataclass.
        described: type and description of its options.
        completions: what shells complete, by option.
    """
    defaults = {one.name: one.default for one in fields(options)}
    return [
        _parameter(name, kind, option, defaults[name], completions.get(name))
        for name, (kind, option) in described.items()
    ]


def values_of(described: Mapping[str, tuple[Any, Option]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given on the command line, with their texts read.

    Raises:
        ZerokitError: a text cannot be read.
    """
    found = {}
    for name, (_, option) in described.items():
        value = given[name]
        if value is not None:
            parse = _PARSERS.get(option.metavar or "")
            found[name] = value if parse is None else parse(value, flag_of(name, option))
    return found


def flag_of(name: str, option: Option) -> str:
    """The option's name on the command line."""
    return option.flag or "--" + name.replace("_", "-")


def _parameter(
    name: str, kind: Any, option: Option, default: Any, completion: Callable[[str], list[str]] | None
) -> inspect.Parameter:
    plain = (
        [one for one in get_args(kind) if one is not type(None)] if isinstance(kind, UnionType) else [kind]
    )
    text = Path if Path in plain and option.metavar == "FILE" else str if str in plain else plain[0]
    if option.metavar in _PARSERS or get_origin(text) not in (None, Literal):
        text = list[str] if option.is_argument or option.metavar in REPEATED else str
    has_value = isinstance(default, (int, str)) and option.metavar not in _PARSERS
    annotation: Any = text if has_value or default is MISSING else text | None
    shown = option.default if option.default is not None else has_value and not isinstance(default, bool)
    declared = (
        typer.Argument(metavar=option.metavar, help=option.help, show_default=False)
        if option.is_argument
        else typer.Option(
            flag_of(name, option),
            metavar=option.metavar,
            help=option.help,
            min=option.minimum,
            show_default=shown,
            autocompletion=completion,
        )
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default if has_value else None,
        annotation=Annotated[annotation, declared],
    )
