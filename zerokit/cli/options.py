"""Command-line options of a dataclass that declares each of its options once."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from zerokit.cli.gpu_options import memory_size
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.options import REPEATED

if TYPE_CHECKING:
    from zerokit.rehearsal.parent.options import Option

T = TypeVar("T")


def with_options(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Have a command accept the options of a dataclass one by one.

    Args:
        options: the dataclass. Each field is annotated with its `typer.Option` or `typer.Argument`.
    """

    def decorate(run: Callable[[T], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**given: Any) -> None:
            run(options(**given))

        kinds = get_type_hints(options, include_extras=True)
        set_parameters(
            command,
            [
                inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if one.default is MISSING else one.default,
                    annotation=kinds[one.name],
                )
                for one in fields(options)  # type: ignore[arg-type]
            ],
        )
        return command

    return decorate


def set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a command the parameters that Typer reads."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}


def shared(options: Any, other: type) -> dict[str, Any]:
    """Return the options that are fields of another dataclass, too."""
    names = {one.name for one in fields(other)}
    return {one.name: getattr(options, one.name) for one in fields(options) if one.name in names}


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
    """Read dotted keys with their values, which are read as JSON if they are JSON."""
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
"""How the text of an option is read, by its metavar."""


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
