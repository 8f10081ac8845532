"""``zerokit check``: report every mistake in ds_config files, and fix them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from zerokit import choices
from zerokit.cli.command import with_options
from zerokit.cli.gpu_options import chosen_gpu, memory_size, note_caveat
from zerokit.cli.output import print_json
from zerokit.console import note
from zerokit.documents import Document
from zerokit.errors import DocumentError, ModelError, ZerokitError, printable, raise_together, visible
from zerokit.files import write_file
from zerokit.findings import DEFAULT_SEVERITY, Severity
from zerokit.hardware import GPUS_PER_NODE

if TYPE_CHECKING:
    from zerokit.lint.outputs import CheckedFile
    from zerokit.lint.rule import Rule
    from zerokit.lint.run import Report
    from zerokit.lint.selection import Selection
    from zerokit.lint.upgrade import Upgrade
    from zerokit.models import ModelShape
    from zerokit.recipe import LoadedRecipe, Recipe
    from zerokit.resolving.run import Run


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    files: list[Path]
    target: choices.Target | None = None
    num_gpus: int | None = None
    gpus_per_node: int = GPUS_PER_NODE
    model: str | None = None
    recipe: Path | None = None
    gpu: str | None = None
    gpu_memory: str | None = None
    host_memory: str | None = None
    deepspeed_version: str | None = None
    upgrade: str | None = None
    only: list[str] | None = None
    disable: list[str] | None = None
    severity: Severity | None = None
    skip_others: bool = False
    output_format: Literal["text", "json", "github", "sarif"] = "text"
    fix: bool = False
    dry_run: bool = False


@with_options(CheckOptions, "check")
def check(options: CheckOptions) -> None:
    """Report every mistake in ds_config files. Exits with 1 if there are errors."""
    from zerokit.hardware.cluster import Cluster
    from zerokit.lint.files import STDIN, files_in
    from zerokit.lint.selection import Selection
    from zerokit.resolving.run import Run

    if options.dry_run and not options.fix:
        raise ZerokitError("there is nothing to try", where="--dry-run", hint="Add --fix")
    if options.fix and not options.dry_run and STDIN in options.files:
        raise ZerokitError("standard input cannot be fixed", where="--fix", hint="Add --dry-run")
    card = chosen_gpu(options.gpu, options.gpu_memory)
    note_caveat(card)
    host_bytes = memory_size(options.host_memory, "--host-memory")
    loaded = None if options.recipe is None else _load(options.recipe)
    run = Run(
        target=options.target,
        cluster=Cluster(options.num_gpus, options.gpus_per_node, card, host_bytes),
        **_read_facts(options.model, loaded, options.deepspeed_version),
    )
    run.cluster.check_given_nodes()
    upgrade = _upgrade(options)
    least = options.severity or ("info" if options.only or upgrade else DEFAULT_SEVERITY)
    selection = Selection(options.only or (), options.disable or (), least)
    checker = _Checker(run, loaded, selection, options.fix, options.dry_run, upgrade)
    checked = checker.check(files_in(options.files, skip_others=options.skip_others))
    _print(checked, options.output_format, checker)
    if options.model is not None and card is not None:
        note("zerokit: note: check does not judge whether the run fits; 'zerokit estimate' does")
    if checker.unfixed:
        note(f"zerokit: note: --fix does not change launch files: {visible(', '.join(checker.unfixed))}")
    if any(checker.diffs):
        note("zerokit: note: preview only: --fix without --diff (or --dry-run) writes this change")
    _exit(checked, checker)


def _upgrade(options: CheckOptions) -> Upgrade | None:
    """The releases of --upgrade; None without it."""
    if options.upgrade is None:
        return None
    from zerokit.lint.upgrade import parse_upgrade

    others = {
        "--fix": options.fix,
        "--deepspeed-version": options.deepspeed_version,
        "--only": options.only,
        "--disable": options.disable,
        "--format sarif": options.output_format == "sarif",
    }
    for name, is_given in others.items():
        if is_given:
            raise ZerokitError(f"cannot be combined with {name}", where="--upgrade", hint="Give one of the two")
    return parse_upgrade(options.upgrade)


def _load(recipe: Path) -> LoadedRecipe:
    from zerokit.recipe import load_recipe

    return load_recipe(recipe)


def _read_facts(model: str | None, loaded: LoadedRecipe | None, deepspeed_version: str | None) -> dict[str, Any]:
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

        facts["deepspeed_version"] = parse_version(deepspeed_version, where="--deepspeed-version")
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
    upgrade: Upgrade | None = None
    diffs: list[str] = field(default_factory=list)
    remaining: list[CheckedFile] = field(default_factory=list)
    """What the fixes of `diffs` leave."""
    unfixed: list[str] = field(default_factory=list)
    """Launch files with findings: --fix changes ds_config files only."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Launch files with the content of an earlier one."""
    bugs: int = 0

    def check(self, files: Iterable[Path | DocumentError]) -> list[CheckedFile]:
        """Check the files, and after each launch file the ds_config that it names."""
        from zerokit.config.launch_file import find_ds_config, is_launch_file
        from zerokit.lint.files import named_ds_configs, twins

        read = [(file, self._read(file)) for file in files]
        documents = [content for _, content in read if isinstance(content, Document)]
        self.twins = twins(documents)
        named = {realpath(file): run for file, run in named_ds_configs(documents, self.run).items()}
        done = {realpath(file) for file, _ in read if isinstance(file, Path)}
        checked = []
        for file, content in read:
            if not isinstance(content, Document):
                checked.append(content)
                continue
            checked.append(self._checked(file, content, named.get(realpath(content.name))))
            beside = find_ds_config(content) if is_launch_file(content.data) else None
            if beside is not None and realpath(beside) not in done:
                done.add(realpath(beside))
                other = self._read(beside)
                run = named[realpath(beside)]
                checked.append(self._checked(None, other, run) if isinstance(other, Document) else other)
        return checked

    def _read(self, file: Path | DocumentError) -> Document | CheckedFile:
        from zerokit.lint import Report
        from zerokit.lint.files import read_file
        from zerokit.lint.outputs import CheckedFile

        if isinstance(file, DocumentError):
            return CheckedFile(file.where or "", Report((), {}), error=file)
        try:
            return read_file(file)
        except DocumentError as error:
            return CheckedFile(printable(file), Report((), {}), error=error)

    def _checked(self, file: object, document: Document, named: Run | None) -> CheckedFile:
        """As :meth:`_with_fixes`, with what a launch file starts."""
        from zerokit.config.launch_file import is_launch_file

        checked = self._with_fixes(file, document, named)
        if not is_launch_file(document.data):
            return checked
        if self.fix and checked.report.findings:
            self.unfixed.append(document.name)
        starts = document.data.get("distributed_type")
        if self.upgrade is not None or starts in ("DEEPSPEED", "NO") or not isinstance(starts, str):
            return checked
        return replace(checked, other_type=starts)

    def _with_fixes(self, file: object, document: Document, named: Run | None) -> CheckedFile:
        """Check a file, and fix it if it was given.

        Args:
            file: its path; not one for a ds_config that was found through a launch file.
            document: what it holds.
            named: what launch files that name it say of its run; None if there are none.
        """
        from zerokit.lint import Report
        from zerokit.lint.fix import fix_document, unified_diff
        from zerokit.lint.outputs import CheckedFile

        report = partial(self._report, named=named)
        try:
            if not self.fix or not isinstance(file, Path):
                return CheckedFile(document.name, report(document))
            fixed = fix_document(document, report)
            if self.dry_run:
                self.diffs.append(unified_diff(document, fixed.document))
                self.remaining.append(CheckedFile(document.name, fixed.report))
                return CheckedFile(document.name, report(document))
            if fixed.done:
                write_file(file, fixed.document.text or "", follow_links=True)
        except ZerokitError as error:
            return CheckedFile(document.name, Report((), {}), error=error)
        return CheckedFile(document.name, fixed.report, fixed.done)

    def _report(self, document: Document, named: Run | None) -> Report:
        from zerokit.config.launch_file import is_launch_file
        from zerokit.lint.files import check_file, check_for_accelerate

        def on_bug(rule: Rule, error: Exception) -> None:
            self.bugs += 1
            note(
                f"zerokit: error: {document.name}: the rule {rule.id} failed on this file, which is a bug of "
                f"zerokit: {type(error).__name__}: {error}"
            )

        if named is not None:
            return check_for_accelerate(document, named, on_bug=on_bug, select=self.selection.of)
        run = self.run
        if self.loaded is not None and not is_launch_file(document.data):
            from zerokit.writing.named_optimizer import write_optimizer

            document, loaded = write_optimizer(document, self.loaded)
            run = replace(run, recipe=loaded.recipe)
        if self.upgrade is not None:
            from zerokit.lint.upgrade import check_upgrade

            return check_upgrade(document, run, self.upgrade, select=self.selection.of)
        twin = self.twins.get(document.name)
        return check_file(document, run, twin=twin, on_bug=on_bug, select=self.selection.of)


def _print(checked: Sequence[CheckedFile], output_format: str, checker: _Checker) -> None:
    from zerokit.lint import outputs
    from zerokit.reporting.terminal import show_lines

    diffs = checker.diffs
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
        left = [file for file in checker.remaining if file.report.findings]
        for words in outputs.text_lines(left) if left else ():
            note("".join(text for text, _ in words))
    else:
        nothing = "nothing found" if checker.upgrade is None else "no changes"
        show_lines(outputs.text_lines(checked, nothing))


def _exit(checked: Sequence[CheckedFile], checker: _Checker) -> None:
    raise_together(file.error for file in checked if file.error is not None)
    if checker.bugs:
        raise typer.Exit(2)
    if any(not file.report.ok for file in checked):
        raise typer.Exit(1)
