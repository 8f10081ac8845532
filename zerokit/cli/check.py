"""``zerokit check``: name every mistake in a ds_config."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from zerokit.cli.output import print_json
from zerokit.errors import DocumentError

if TYPE_CHECKING:
    from zerokit.config import Problem
    from zerokit.documents import Document


def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="ds_config files.", show_default=False)
    ],
    target: Annotated[
        Literal["trainer", "accelerate", "deepspeed"] | None,
        typer.Option(
            help='Who hands the config to DeepSpeed, and so fills "auto".', show_default="any of them"
        ),
    ] = None,
    num_gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the run, to check the batch sizes.")
    ] = None,
    output_format: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Form of the result.")
    ] = "text",
) -> None:
    """Name every mistake in ds_config files. Exits with 1 if there are errors."""
    from zerokit.config import check_document
    from zerokit.documents import read_document

    checked: list[tuple[Document, list[Problem]]] = []
    unreadable: list[DocumentError] = []
    for file in files:
        try:
            document = read_document(file)
        except DocumentError as error:
            unreadable.append(error)
        else:
            checked.append((document, check_document(document, target=target, num_gpus=num_gpus)))

    if output_format == "json":
        print_json(_as_data(checked))
    else:
        _print_text(checked)
    _exit(unreadable, [problem for _, problems in checked for problem in problems])


def _exit(unreadable: list[DocumentError], problems: list[Problem]) -> None:
    from zerokit.console import print_error

    if unreadable:
        for error in unreadable[:-1]:
            print_error(error)
        raise unreadable[-1]
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(1)


def _as_data(checked: list[tuple[Document, list[Problem]]]) -> dict[str, object]:
    from zerokit.documents import dotted

    return {
        "files": [
            {
                "file": document.name,
                "findings": [
                    {
                        "rule": problem.rule,
                        "severity": problem.severity,
                        "path": dotted(problem.path),
                        "line": problem.line,
                        "message": problem.message,
                        "hint": problem.hint,
                    }
                    for problem in problems
                ],
            }
            for document, problems in checked
        ]
    }


def _print_text(checked: list[tuple[Document, list[Problem]]]) -> None:
    for document, problems in checked:
        for problem in problems:
            hint = f". {problem.hint}" if problem.hint else ""
            where = document.where(problem.path)
            typer.echo(f"{where}: {problem.severity}: {problem.message}{hint} [{problem.rule}]")
        if not problems:
            typer.echo(f"{document.name}: no problems")
    count = Counter(problem.severity for _, problems in checked for problem in problems)
    if count:
        counted = ", ".join(
            f"{number} {kind}{'s' if number > 1 else ''}" for kind, number in sorted(count.items())
        )
        typer.echo(f"{counted} in {len(checked)} file{'s' if len(checked) > 1 else ''}")
