"""``zerokit rehearse``: run a training script on virtual GPUs."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zerokit import choices
from zerokit.cli.command import described, set_parameters
from zerokit.cli.options import flag_of, parameters_of, values_of
from zerokit.cli.output import STDOUT, json_on_stdout, not_stdout, print_json
from zerokit.console import note
from zerokit.documents import is_file, path_exists
from zerokit.errors import ZerokitError
from zerokit.extras import require
from zerokit.files import check_writable, json_text, write_file
from zerokit.rehearsal.options import DRAWINGS, RehearsalOptions
from zerokit.rehearsal.options import described as described_options
from zerokit.units import is_time_unit

if TYPE_CHECKING:
    from zerokit.rehearsal.report.report import RehearsalReport

_INTERRUPTED = 130
_OPTIONS = described_options(RehearsalOptions)


@described("rehearse")
def rehearse(
    context: typer.Context,
    *,
    details: bool = False,
    output_format: choices.OutputFormat = "text",
    output: Path | None = None,
    html: Path | None = None,
    force: bool = False,
    **given: Any,
) -> None:
    """Run SCRIPT on virtual GPUs and report its memory. Exits with 1 where it does not fit, 2 where it hangs.

    The real DeepSpeed runs the real script; no GPU is needed and none is used. Options go before SCRIPT.
    """
    require("rehearse", where="zerokit rehearse")  # before its packages are imported

    from zerokit.rehearsal.parent.processes import ExplainedError, ScriptError
    from zerokit.rehearsal.parent.rehearse import rehearse as rehearse_script

    script = given["script"]
    _check_words(script)
    as_json = json_on_stdout(output, output_format)
    output = not_stdout(output)
    for name in DRAWINGS:
        if given[name] == STDOUT:
            where = f"{flag_of(name, _OPTIONS[name][1])} -"
            raise ZerokitError("is no file", where=where, hint="Name one: the report is on stdout")
    for file in (output, html, *(given[name] for name in DRAWINGS)):
        if file is not None:
            check_writable(file, force=force, follow_links=True)
    own = [name for param in context.command.params for name in param.opts]
    late = [word for word in given["arguments"] or [] if word.partition("=")[0].replace("_", "-") in own]
    unread = _unmentioned(late, script, module=given["module"])
    show = functools.partial(_show, as_json=as_json, details=details, unread=unread)
    try:
        report = rehearse_script(
            **values_of(_OPTIONS, given), script_prints_on="stderr" if as_json else "stdout", show=show
        )
    except ExplainedError:  # the worker has printed it
        raise typer.Exit(ZerokitError.exit_code) from None
    except ScriptError as error:
        if not late:
            raise
        hint = f"{error.hint}. {late[0]} went to the script: if meant for rehearse, put it before {script}"
        raise ZerokitError(error.message, where=error.where, hint=hint) from None
    _print(report, as_json=as_json, output=output, html=html)


def _with_parameters() -> None:
    own = list(inspect.signature(rehearse).parameters.values())
    context, *rest = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
    made = parameters_of(RehearsalOptions, _OPTIONS)
    made.sort(key=lambda one: "argument" in _OPTIONS[one.name][1])
    set_parameters(rehearse, [context, *made, *rest])


_with_parameters()


def _unmentioned(options: list[str], script: str, *, module: bool) -> list[str]:
    """The long `options` that neither the script nor a file next to it mentions; none if it is not found."""
    names = {word.partition("=")[0].replace("_", "-") for word in options if word.startswith("--")}
    paths = [Path(script)]
    if module:
        parts = script.split(".")
        bases = [Path(base, *parts) for base in ("", *sys.path)]
        paths = [path for base in bases for path in (base.with_suffix(".py"), base / "__main__.py")]
    path = next((path for path in paths if names and is_file(path)), None)
    if path is None:
        return []
    text = ""
    for file in {path, *path.parent.glob("*.py")}:
        with suppress(OSError):
            text += file.read_text(encoding="utf-8", errors="replace")
    words = {name: name.lstrip("-").replace("-", "[-_]") for name in names}
    return sorted(name for name, word in words.items() if not re.search(rf"\b{word}\b", text))


def _show(report: RehearsalReport, *, as_json: bool, details: bool, unread: list[str]) -> None:
    """Print the answer, before changes are rehearsed, and which options the script seems to ignore."""
    if unread:
        verb = "stands" if len(unread) == 1 else "stand"
        whose = "it" if len(unread) == 1 else "them"
        note(f"note: {', '.join(unread)} {verb} after the script, which gets {whose}")
    from zerokit.rehearsal.report.tables import print_report

    if not as_json:
        print_report(report, details=details)
        sys.stdout.flush()


def _print(report: RehearsalReport, *, as_json: bool, output: Path | None, html: Path | None) -> None:
    """Print what changes would help below the answer, or all as JSON."""
    from zerokit.rehearsal.report.tables import print_advice
    from zerokit.reporting.verdicts import exit_code

    data = report.model_dump()
    if output is not None:
        write_file(output, json_text(data), follow_links=True)
    if html is not None:
        from zerokit.reporting.page import write_page

        write_page(html, data)
    if as_json:
        print_json(data)
    else:
        print_advice(report)
    if report.interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(ZerokitError.exit_code if report.stuck else exit_code([report.fit.verdict]))


def _check_words(script: str) -> None:
    """Refuse the second word of ``--scan 5 minutes``, which is read as the script."""
    if is_time_unit(script) and not path_exists(Path(script)):
        raise ZerokitError("no such script", where=script, hint="Write a time as one word, such as --scan 5min")
