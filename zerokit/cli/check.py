"""``zerokit check``: report every mistake in ds_config files, and fix them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from zerokit import choices
from zerokit.cli import completion
from zerokit.cli.command import with_options
from zerokit.cli.gpu_options import (
    chosen_gpu,
    gpu_memory_option,
    gpu_option,
    host_memory_option,
    memory_size,
    note_caveat,
)
from zerokit.cli.output import print_json
from zerokit.errors import DocumentError, ModelError, ZerokitError, visible
from zerokit.files import write_file
from zerokit.findings import DEFAULT_SEVERITY, Severity
from zerokit.hardware import GPUS_PER_NODE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerokit.documents import Document
    from zerokit.lint.outputs import CheckedFile
    from zerokit.lint.rule import Rule
    from zerokit.lint.run import Report
    from zerokit.lint.selection import Selection
    from zerokit.models import ModelShape
    from zerokit.recipe import LoadedRecipe, Recipe
    from zerokit.resolving.run import Run

_rule = partial(typer.Option, metavar="RULE", autocompletion=completion.rule)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """All options of ``zerokit check``."""

    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="ds_config files, YAML of accelerate launch, folders of both, or - for standard input.",
            show_default=False,
        ),
    ]
    target: Annotated[
        choices.Target | None,
        typer.Option(
            help='The program that passes the config to DeepSpeed and fills "auto".',
            show_default="any of them",
        ),
    ] = None
    num_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the run: its world size.")] = None
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of one node.")] = GPUS_PER_NODE
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            autocompletion=completion.model,
            help="Hub id, folder, config.json or a well-known name.",
        ),
    ] = None
    recipe: Annotated[Path | None, typer.Option(metavar="FILE", help="The recipe that uses the config.")] = (
        None
    )
    gpu: Annotated[str | None, gpu_option()] = None
    gpu_memory: Annotated[str | None, gpu_memory_option()] = None
    host_memory: Annotated[str | None, host_memory_option()] = None
    deepspeed_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="DeepSpeed of the cluster.", show_default="the newest"),
    ] = None
    only: Annotated[list[str] | None, _rule("--only", help="Report this rule only.")] = None
    disable: Annotated[list[str] | None, _rule(help="Do not report this rule.")] = None
    severity: Annotated[
        Severity | None,
        typer.Option(
            "--severity",
            help="Lowest severity to report.",
            show_default=f"{DEFAULT_SEVERITY}; info with --only",
        ),
    ] = None
    skip_others: Annotated[
        bool,
        typer.Option(
            "--skip-others",
            help="Leave out files that are no ds_config and no YAML of accelerate launch for DeepSpeed.",
        ),
    ] = False
    output_format: Annotated[
        Literal["text", "json", "github", "sarif"], typer.Option("--format", help="Output format.")
    ] = "text"
    fix: Annotated[
        bool, typer.Option("--fix", help="Fix mistakes that have one right answer, in the files.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "--diff", help="With --fix: print the change and write nothing.")
    ] = False


@with_options(CheckOptions)
def check(options: CheckOptions) -> None:
    """Report every mistake in ds_config files. Exits with 1 if there are errors."""
    from zerokit.hardware.cluster import Cluster
    from zerokit.lint.files import files_in
    from zerokit.lint.selection import Selection
    from zerokit.resolving.run import Run

    if options.dry_run and not options.fix:
        raise ZerokitError("there is nothing to try", where="--dry-run", hint="Add --fix")
    card = chosen_gpu(options.gpu, options.gpu_memory)
    note_caveat(card)
    host_bytes = memory_size(options.host_memory, "--host-memory")
    loaded = None if options.recipe is None else _load(options.recipe)
    run = Run(
        target=options.target,
        cluster=Cluster(options.num_gpus, options.gpus_per_node, card, host_bytes),
        **_read_facts(options.model, loaded, options.deepspeed_version),
    )
    least = options.severity or ("info" if options.only else DEFAULT_SEVERITY)
    selection = Selection(options.only or (), options.disable or (), least)
    checker = _Checker(run, loaded, selection, options.fix, options.dry_run)
    checked = [checker.check(file) for file in files_in(options.files, skip_others=options.skip_others)]
    _print(checked, options.output_format, checker.diffs)
    if options.model is not None and card is not None:
        from zerokit.console import note

        note("zerokit: note: check does not judge whether the run fits; 'zerokit estimate' does")
    if any(checker.diffs):
        from zerokit.console import note

        note("zerokit: note: preview only: --fix without --diff (or --dry-run) writes this change")
    _exit(checked, checker)


def _load(recipe: Path) -> LoadedRecipe:
    from zerokit.recipe import load_recipe

    return load_recipe(recipe)


def _read_facts(
    model: str | None, loaded: LoadedRecipe | None, deepspeed_version: str | None
) -> dict[str, Any]:
    """Look up what the options name. Modules are imported only when needed."""
    facts: dict[str, Any] = {}
    if model is not None:
        from zerokit.models import load_model_shape

        facts["model"] = load_model_shape(model)
    if loaded is not None:
        facts["recipe"] = loaded.recipe
        if model is None:
            facts["model"] = _model_of(facts["recipe"])
    if deepspeed_version is not None:
        from zerokit.releases.versions import parse_version

        facts["deepspeed_version"] = parse_version(deepspeed_version)
    return facts


def _model_of(recipe: Recipe) -> ModelShape | None:
    """The model that a recipe names; None if it needs a network or torch, or cannot be read."""
    from zerokit.models import load_model_shape

    section = recipe.model
    named = section.path or section.from_config
    assert named is not None
    with suppress(ModelError):
        return load_model_shape(named, revision=section.revision, allow_network=False, allow_torch=False)
    return None


@dataclass
class _Checker:
    """Reads, fixes and checks files."""

    run: Run
    loaded: LoadedRecipe | None
    selection: Selection
    fix: bool
    dry_run: bool
    diffs: list[str] = field(default_factory=list)
    bugs: int = 0

    def check(self, file: Path | DocumentError) -> CheckedFile:
        from zerokit.documents import printable
        from zerokit.lint import Report
        from zerokit.lint.files import read_file
        from zerokit.lint.outputs import CheckedFile

        if isinstance(file, DocumentError):
            return CheckedFile(file.where or "", Report((), {}), error=file)
        try:
            document = read_file(file)
        except DocumentError as error:
            return CheckedFile(printable(file), Report((), {}), error=error)
        if not self.fix:
            return CheckedFile(document.name, self._report(document))
        return self._fixed(file, document)

    def _fixed(self, file: Path, document: Document) -> CheckedFile:
        from zerokit.lint import Report
        from zerokit.lint.files import STDIN
        from zerokit.lint.fix import fix_document, unified_diff
        from zerokit.lint.outputs import CheckedFile

        if file == STDIN and not self.dry_run:
            raise ZerokitError("standard input cannot be fixed", where="--fix", hint="Add --dry-run")
        fixed = fix_document(document, self._report)
        if self.dry_run:
            self.diffs.append(unified_diff(document, fixed.document))
            return CheckedFile(document.name, self._report(document))
        try:
            if fixed.done:
                write_file(file, fixed.document.text or "", follow_links=True)
        except ZerokitError as error:
            return CheckedFile(document.name, Report((), {}), error=error)
        return CheckedFile(document.name, fixed.report, fixed.done)

    def _report(self, document: Document) -> Report:
        from zerokit.config.launch_file import is_launch_file
        from zerokit.lint.files import check_file

        def on_bug(rule: Rule, error: Exception) -> None:
            from zerokit.console import note

            self.bugs += 1
            note(
                f"zerokit: error: {document.name}: the rule {rule.id} failed on this file, which is a bug of "
                f"zerokit: {type(error).__name__}: {error}"
            )

        run = self.run
        if self.loaded is not None and not is_launch_file(document.data):
            from zerokit.writing.named_optimizer import write_optimizer

            document, loaded = write_optimizer(document, self.loaded)
            run = replace(run, recipe=loaded.recipe)
        return check_file(document, run, on_bug=on_bug, select=self.selection.of)


def _print(checked: Sequence[CheckedFile], output_format: str, diffs: Sequence[str]) -> None:
    from zerokit.lint import outputs
    from zerokit.reporting.terminal import show_lines

    if output_format == "json":
        print_json(outputs.to_data(checked) | ({"diff": "".join(diffs)} if diffs else {}))
    elif output_format == "sarif":
        print_json(outputs.to_sarif(checked))
    elif output_format == "github":
        typer.echo(outputs.to_github(checked), nl=False)
    elif any(diffs):
        # Line ends stay, so that the diff applies to the file.
        for line in "".join(diffs).removesuffix("\n").split("\n"):
            text = line.removesuffix("\r")
            typer.echo("\t".join(map(visible, text.split("\t"))) + line[len(text) :])
    else:
        show_lines(outputs.text_lines(checked))


def _exit(checked: Sequence[CheckedFile], checker: _Checker) -> None:
    from zerokit.console import print_error

    unreadable = [file.error for file in checked if file.error is not None]
    if unreadable:
        for error in unreadable[:-1]:
            print_error(error)
        raise unreadable[-1]
    if checker.bugs:
        raise typer.Exit(2)
    if any(not file.report.ok for file in checked):
        raise typer.Exit(1)
