"""``zerokit explain-exit``: why a run died."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from zerokit import choices
from zerokit.cli.command import Command, described
from zerokit.cli.output import print_json


class CodeCommand(Command):
    """A command whose argument may be a negative number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move exit codes behind ``--``."""
        codes = [word for word in args if re.fullmatch(r"-\d+", word)]
        others = [word for word in args if word not in codes]
        return super().parse_args(ctx, [*others, "--", *codes] if codes and "--" not in args else args)


COMMAND = CodeCommand


@described("explain-exit")
def explain_exit(what: list[str], output_format: choices.OutputFormat = "text") -> None:
    """Explain why a run died: the cause first, with its line in the log, then the fix.

    Of the logs of several ranks, one answer is the first cause, and what followed from it.
    """
    from zerokit.documents import is_file
    from zerokit.exits.codes import parse_code
    from zerokit.exits.explain import explain_code
    from zerokit.exits.several import explain_logs
    from zerokit.reporting.terminal import show

    code = parse_code(what[0]) if len(what) == 1 and not is_file(Path(what[0])) else None
    found = explain_logs(what) if code is None else explain_code(code)
    if output_format == "json":
        names = ("log", "cause", "message", "fix", "line", "text", "also")
        print_json({name: asdict(found)[name] for name in names})
    else:
        where = "" if found.line is None else f"{found.log}:{found.line}: "
        show([f"{where}{found.message}"])
        show([f"  what to do: {found.fix}"] if found.fix else [])
        is_shown = found.text is not None and found.message in found.text  # for zerokit's own errors
        show([f"  the line: {found.text}"] if found.text and not is_shown else [])
        show(f"  also: {one}" for one in found.also)
    if found.cause == "unknown":
        raise typer.Exit(1)
