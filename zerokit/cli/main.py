"""The command ``zerokit``.

A command is one module with one function, listed in :data:`COMMANDS`. It imports what costs time inside the
function, so that ``zerokit --help`` and each command pay only for themselves.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from zerokit import __version__
from zerokit.cli import on_ranks
from zerokit.cli.command import ClickException, Command, Group
from zerokit.errors import DocumentError, ZerokitError
from zerokit.tables import table_of

COMMANDS = (
    *("config", "check", "explain", "resolve", "diff", "schema", "estimate", "plan", "gpus", "prices", "calibrate"),
    *("models", "launch-script", "doctor", "env", "quickstart", "explain-exit", "train", "generate", "evaluate"),
    *("checkpoint", "rehearse", "report"),
)
"""In the order of the help. Each has its module in `zerokit.cli`; `env` is in that of `doctor`."""

_ELSEWHERE: Mapping[str, Mapping[str, Sequence[str]]] = table_of(__file__)
"""Command -> hint -> options of other commands, and of other checkers, that the command has not."""
_QUICK = ("check", "config", "diff", "estimate", "explain", "resolve", "schema")
"""Short commands. Imports would trigger the garbage collector dozens of times."""
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(*command: str) -> None:
    """Run the command line and exit: 0 good, 1 the answer is "no", 2 unusable input.

    Args:
        command: words before those of this process, for a script that is one command.
    """
    # A stream that the shell has closed is None.
    with redirect_stdout(sys.stdout or io.StringIO()), redirect_stderr(sys.stderr or io.StringIO()):
        _main(command)


def _main(command: tuple[str, ...]) -> NoReturn:
    words = [*command, *sys.argv[1:]]
    launched = words[:1] in ([name] for name in on_ranks.COMMANDS) and "RANK" in os.environ
    fail = on_ranks.fail if launched else _fail
    _accept_all_characters()
    if words[:1] and words[0] in _QUICK:
        gc.set_threshold(20_000)
    try:
        code = command_line(words)(words, prog_name="zerokit", standalone_mode=False, obj=words[1:])
        sys.stdout.flush()
    except ZerokitError as error:
        fail(_preset_meant(error))
    except BrokenPipeError:
        _end_of_pipe()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        fail(ZerokitError(f"nothing more can be written: {error.strerror}", where=error.filename or "stdout"))
    except SystemExit as stop:
        # How typer answers a broken pipe; its exit code 1 would mean "no".
        if isinstance(stop.__context__, BrokenPipeError):
            _end_of_pipe()
        raise
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED)
    except Exception as error:
        if not isinstance(error, ClickException):
            raise
        fail(_usage_error(error))
    sys.exit(code if isinstance(code, int) else 0)


def _accept_all_characters() -> None:
    """Avoid errors for characters that the shell's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_of_pipe() -> None:
    """Exit after the reader, such as `head`, has closed the pipe."""
    _discard_output()
    if on_ranks.is_rank():
        from zerokit.distributed.exit_reports import exit_now

        exit_now(_BROKEN_PIPE)
    sys.exit(_BROKEN_PIPE)


def _discard_output() -> None:
    """Keep Python from a second error when it flushes stdout at exit."""
    from zerokit.console import discard

    discard(sys.stdout.fileno())


def _usage_error(error: Any) -> ZerokitError:
    if (of_a_number := _number_error(error)) is not None:
        return of_a_number
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "zerokit"
    text = error.format_message().replace("Value error, ", "")
    message, meant, suggestion = text.partition(" Did you mean ")
    unknown = getattr(error, "option_name", "")
    for hint, options in _ELSEWHERE.get(command, {}).items():
        if unknown in options:
            return ZerokitError(f"there is no {unknown}", hint=hint)
    return ZerokitError(message, hint=meant.strip() + " " + suggestion if meant else f"Run '{command} --help'")


def _number_error(error: Any) -> ZerokitError | None:
    """The error of a number; new releases of typer leave it to pydantic."""
    from pydantic import ValidationError

    from zerokit.validation import EXPECTED, bound_words

    param: Any = getattr(error, "param", None)
    if not isinstance(error.__cause__, ValidationError) or not hasattr(param, "min"):
        return None
    what = error.__cause__.errors()[0]
    if what["type"] in EXPECTED:
        message = f"'{what['input']}' is not {EXPECTED[what['type']]}"
    elif bound_words(what["type"], what.get("ctx", {})) is not None:
        message = f"is {what['input']}"
    else:
        return None
    least, most = param.min, param.max
    if least is None:
        hint = f"Run '{error.ctx.command_path} --help'" if most is None else f"Give {most} or less"
    else:
        hint = f"Give {least} or more" if most is None else f"Give {least} to {most}"
    return ZerokitError(message, where=param.opts[0], hint=hint)


def _preset_meant(error: ZerokitError) -> ZerokitError:
    """Tell whoever names a preset where a file belongs how to write that file."""
    name = Path(error.where or "").stem
    if isinstance(error, DocumentError) and error.message == "no such file":
        from zerokit.writing.presets import PRESETS

        if name in PRESETS:
            hint = f"To write that preset: zerokit config --preset {name} -o {name}.json"
            return DocumentError(error.message, where=error.where, hint=hint)
    return error


def _fail(error: ZerokitError) -> NoReturn:
    from zerokit.console import print_error

    print_error(error)
    sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zerokit {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command_line(words: Sequence[str] = ()) -> typer.Typer:
    """The command line, with one command if `words` begin with its name, else with all of them.

    Building a command takes milliseconds, and there are many.
    """
    app = typer.Typer(
        name="zerokit",
        cls=Group,
        help="Plan, check and run DeepSpeed ZeRO training.",
        rich_markup_mode=None,  # whose boxes cut names of options on narrow terminals
        pretty_exceptions_enable=False,  # a user's error is one line, a bug of zerokit a plain traceback
    )
    app.callback(invoke_without_command=True)(_root)
    for name in words[:1] if words and words[0] in COMMANDS else COMMANDS:
        module = "doctor" if name == "env" else name.replace("-", "_")
        _register(app, name, import_module(f"zerokit.cli.{module}"))
    return app


def _register(app: typer.Typer, name: str, module: Any) -> None:
    if name in ("checkpoint", "prices"):
        app.add_typer(module.app)
        return
    function = getattr(module, name.replace("-", "_"))
    kind: type[Command] = getattr(module, "COMMAND", Command)
    options: dict[str, Any] = {}
    if name in on_ranks.COMMANDS:
        kind = on_ranks.PassthroughCommand
        options = {"context_settings": on_ranks.SETTINGS, "help": on_ranks.help_of(function)}
    elif name == "rehearse":  # what follows the script is the script's
        options = {"context_settings": {"allow_interspersed_args": False}}
    app.command(cls=kind, **options)(function)
