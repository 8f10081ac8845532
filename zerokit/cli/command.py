"""Extensions of click: options of a dataclass, all missing options in one error, help by headings."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from zerokit.errors import ZerokitError
from zerokit.reporting.tables import fold
from zerokit.units import LARGEST_NUMBER

# typer exports one exception of the click it builds on, whose bases are the ones needed here.
UsageError: Any
ClickException: Any
UsageError, ClickException = typer.BadParameter.__mro__[1:3]
T = TypeVar("T")


_DEFAULT_IN_WORDS = re.compile(r"\[default: \((.*)\)(?=(;[^;]*)?\]$)")
"""A default in words, which typer puts in parentheses, perhaps with a range after it."""


_CHECKED_BY_COMMAND = ("learning_rate", "gradient_clipping")
"""Options whose command says which numbers it accepts."""


class _Missing(typer.BadParameter):
    """A required option or argument is missing."""

    param_type = ""  # like click's exception for missing parameters, and no other

    def format_message(self) -> str:
        return self.message


def required_unless(given: Callable[[Mapping[str, Any]], object], name: str, hint: str) -> Callable[..., Any]:
    """Return the callback of an option or argument that is required unless `given` is true.

    Args:
        given: a test of the values read so far, by name; absent options may be missing.
        name: as in ``option '--seq-len'``.
        hint: what to give in its place.
    """

    def check(context: typer.Context, value: Any) -> Any:
        if value is None and not context.resilient_parsing and not given(context.params):
            raise _Missing(f"Missing {name}. {hint}", ctx=context)
        return value

    return check


def with_options(
    options: type[T], command: str = "", **callbacks: Callable[..., Any]
) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Have a command accept the options of a dataclass one by one.

    Args:
        command: has rows in `options.json`, which describe the fields that are not annotated with their own
            `typer.Option` or `typer.Argument`.
        callbacks: of fields, by name.
    """

    def decorate(run: Callable[[T], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def accept(**given: Any) -> None:
            run(options(**given))

        parameters = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if one.default is MISSING else one.default,
            )
            for one in fields(options)  # type: ignore[arg-type]
        ]
        _describe(accept, parameters, get_type_hints(options, include_extras=True), command, callbacks)
        return accept

    return decorate


def described(command: str, **callbacks: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make options and arguments of a function's parameters, as the command's rows in `options.json` say."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(run).parameters.values())
        _describe(run, parameters, get_type_hints(run, include_extras=True), command, callbacks)
        return run

    return decorate


def _describe(
    run: Callable[..., None],
    parameters: Sequence[inspect.Parameter],
    kinds: Mapping[str, Any],
    command: str,
    callbacks: Mapping[str, Callable[..., Any]],
) -> None:
    common = {name: row for name, row in _table()["*"].items() if name in kinds}
    rows = {**common, **_table().get(command, {})}
    annotated = dict(kinds)
    for name, row in rows.items():
        # A switch has no --no-NAME.
        flags = row.get("flags", [f"--{name.replace('_', '-')}"] if kinds[name] is bool else [])
        declared = declaration(**{**row, "flags": flags}, callback=callbacks.get(name))
        annotated[name] = Annotated[kinds[name], declared]
    set_parameters(run, [one.replace(annotation=annotated[one.name]) for one in parameters])


@functools.cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Command -> parameter -> arguments of :func:`declaration`. A key may name several commands;
    ``*`` has what a parameter of that name means in every command that has no row for it."""
    table: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    text = Path(__file__).with_name("options.json").read_text(encoding="utf-8")
    for commands, rows in json.loads(text).items():
        for command in commands.split(", "):
            table[command] |= rows
    return table


def declaration(
    *,
    help: str,
    argument: bool = False,
    flags: Sequence[str] = (),
    heading: str | None = None,
    default: str | bool | None = None,
    **others: Any,
) -> Any:
    """What Typer reads of a parameter.

    Args:
        flags: if there are others than the one that its name makes.
        heading: above it in the help.
        default: in words, where the value says too little; false: it is not shown.
        others: as Typer calls them.
    """
    return (typer.Argument if argument else typer.Option)(
        *flags, help=help, rich_help_panel=heading, show_default=not argument if default is None else default, **others
    )


def set_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a command the parameters that Typer reads."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}


def common_options(options: Any, other: type) -> dict[str, Any]:
    """Return the options that are fields of another dataclass, too."""
    names = {one.name for one in fields(other)}
    return {one.name: getattr(options, one.name) for one in fields(options) if one.name in names}


class Command(TyperCommand):
    """A command that reports all missing options at once, where click reports the first.

    Its help lists options under their headings.
    """

    examples: ClassVar[Mapping[str, str]] = {}
    """By parameter: what to write if it is missing."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, by heading."""
        under: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                name, text = record
                record = name, _DEFAULT_IN_WORDS.sub(r"[default: \1", text)
                kind = "Arguments" if param.param_type_name == "argument" else "Options"
                under.setdefault(getattr(param, "rich_help_panel", None) or kind, []).append(record)
        for heading, records in under.items():
            _write_list(formatter, heading, records)

    def declared_name(self, ctx: Any, name: str) -> str:
        """Return an option's declared name: DeepSpeed's launcher writes underscores for hyphens."""
        own = name.replace("_", "-")
        names = {one for param in self.get_params(ctx) for one in (*param.opts, *param.secondary_opts)}
        return own if own in names else name

    def make_parser(self, ctx: Any) -> Any:
        """Return click's parser, with names of options and choices mapped to their declared names."""
        ctx.token_normalize_func = lambda word: self.declared_name(ctx, f"--{word}").removeprefix("--")
        return super().make_parser(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; an error names the command whose help to read."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            self._refuse_argument_as_option(ctx, getattr(error, "option_name", ""))
            missing = self.missing(ctx, words) if hasattr(error, "param_type") else []
            completed = self.completed(ctx, words) if missing else None
            if completed is not None:
                return super().parse_args(ctx, completed)
            if not ctx.allow_interspersed_args:
                self._refuse_late_option(ctx, words, [param for param, _ in missing])
            if len(missing) > 1:
                example = " ".join(self.examples.get(param.name, "") for param, _ in missing).strip()
                such = f". For example: {example}" * bool(example)
                ctx.fail(f"Missing {', '.join(name for _, name in missing)}{such}")
            error.ctx = ctx
            raise

    def _refuse_argument_as_option(self, ctx: Any, unknown: str) -> None:
        """Refuse ``--model`` where the model is an argument."""
        for param in self.get_params(ctx):
            if param.param_type_name == "argument" and unknown.removeprefix("--") == param.name:
                name = (param.metavar or unknown.removeprefix("--").upper()).strip("{}[].")
                ctx.fail(f"{unknown} is no option here: write {name} by itself, as in {ctx.command_path} {name}")

    def _refuse_late_option(self, ctx: Any, words: list[str], missing: list[Any]) -> None:
        """Refuse an option after an argument, where it would be passed on to the script."""
        names = {name for param in missing for name in param.opts}
        late = [word for word in words if self.declared_name(ctx, word.partition("=")[0]) in names]
        first = next((param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"), "")
        if late:
            ctx.fail(f"{late[0]} stands after {first} and goes to it: put it before {first}")

    def completed(self, ctx: Any, words: list[str]) -> list[str] | None:
        """Return the words with the missing ones added; None if that is not possible."""
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that begins with the name of a parameter gets its option as the place."""
        try:
            for name, value in ctx.params.items():
                is_number = isinstance(value, int | float) and name not in _CHECKED_BY_COMMAND
                if is_number and not abs(value) <= LARGEST_NUMBER:
                    raise ZerokitError(f"{name} is {value}", hint=f"Give at most {LARGEST_NUMBER:,}")
            return super().invoke(ctx)
        except ZerokitError as error:
            flags = {param.name: param.opts[0] for param in self.get_params(ctx) if param.param_type_name == "option"}
            for one in (error, *error.others):
                name, _, message = one.message.partition(" ")
                if one.where is None and name in flags and message.startswith(("is ", "must ", "has ")):
                    one.where, one.message = flags[name], message
            raise

    def missing(self, ctx: Any, words: list[str]) -> list[tuple[Any, str]]:
        """Return the missing parameters, each with its name in an error."""
        given, *_ = self.make_parser(ctx).parse_args(list(words))
        found = []
        for param in self.get_params(ctx):
            try:
                param.handle_parse_result(ctx, given, [])
            except typer.BadParameter as error:
                if hasattr(error, "param_type"):
                    name = error.format_message().removeprefix("Missing ").partition(".")[0]
                    found.append((param, name))
        return found


class Group(TyperGroup):
    """A group whose help has the first sentence of each command in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write them in their order."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        records = [(name, one.get_short_help_str(sys.maxsize)) for name, one in commands if one is not None]
        _write_list(formatter, "Commands", records)


def command_group(name: str, summary: str) -> typer.Typer:
    """Return a group of commands, which prints its help without a command."""
    group = typer.Typer(name=name, cls=Group, help=summary, rich_markup_mode=None)

    @group.callback(invoke_without_command=True)
    def root(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


def _write_list(formatter: Any, heading: str, records: list[tuple[str, str]]) -> None:
    """Write a list as click does, but without breaking names of options at their hyphens."""
    if not records:
        return
    # A longer name has its own line.
    widest = min(30, formatter.width * 2 // 5, max(len(name) for name, _ in records))
    place = widest + 4
    with formatter.section(heading):
        for name, text in records:
            first, *rest = fold(text, formatter.width - place)
            if len(name) > widest:
                formatter.write(f"  {name}\n")
                name = ""
            formatter.write(f"  {name}".ljust(place) + first + "\n")
            formatter.write("".join(" " * place + line + "\n" for line in rest))
