"""Finds and reads the files that a person names."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from zerokit.choices import Target
from zerokit.config.launch_file import find_ds_config, is_launch_file
from zerokit.documents import (
    MAX_BYTES,
    Document,
    KeyPath,
    is_file,
    is_folder,
    parse_document,
    read_bytes,
    starts_as_json,
    unreadable_reason,
)
from zerokit.documents.causes import has_tags
from zerokit.errors import DocumentError, printable
from zerokit.findings import Finding
from zerokit.lint.recognition import is_meant, mentions_ds_config, mentions_launch, refuse_other_files
from zerokit.lint.run import OnBug, Report, Select, check_document, check_launch_document, everything, launched_run
from zerokit.resolving.run import Run

STDIN = Path("-")
TARGETS: tuple[Target, Target] = ("trainer", "accelerate")
"""Who may be started by ``accelerate launch``."""
_JSON = (".json", ".jsonc")
_YAML = (".yaml", ".yml")


def files_in(paths: Sequence[Path], *, skip_others: bool = False) -> Iterator[Path | DocumentError]:
    """The files that `paths` name: themselves, and of a folder those that are a ds_config or start DeepSpeed
    with ``accelerate launch``, by their content.

    A folder without any gives an error in its place.

    Args:
        paths: files and folders.
        skip_others: leave out files of other kinds, too.
    """
    for path in paths:
        if path == STDIN or not is_folder(path):
            if not skip_others or path == STDIN or not is_file(path) or is_meant_file(path):
                yield path
            continue
        found = [file for file in _settings_files(path) if is_meant_file(file)]
        if not found:
            yield DocumentError("there is no ds_config in this folder", where=path, hint="Name the file itself")
        yield from found


def read_file(path: Path) -> Document:
    """Read a file as DeepSpeed would, or the YAML of ``accelerate launch``; ``-`` is standard input.

    Raises:
        DocumentError: it cannot be read, or is surely something else.
    """
    if path == STDIN:
        content, name = sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>"
    else:
        content, name = read_bytes(path), printable(path)
    ending, json_opened = path.suffix.lower(), starts_as_json(content)
    yaml = ending not in _JSON and not (json_opened and (ending not in _YAML or _is_json(content)))
    try:
        document = parse_document(content, name, yaml=yaml, lenient=True)
    except DocumentError as error:
        if has_tags(content.decode(errors="replace")):
            raise DocumentError(
                "is a template with words to be filled in, which is neither JSON nor YAML",
                where=error.where,
                hint="Check the file that is made from it",
            ) from None
        raise
    if not is_launch_file(document.data):
        refuse_other_files(document)
    return document


def check_file(
    document: Document,
    run: Run | None = None,
    *,
    twin: str | None = None,
    on_bug: OnBug | None = None,
    select: Select = everything,
) -> Report:
    """What is wrong with a ds_config, or with the YAML of ``accelerate launch``; see `check_document` and
    `check_launch_document`."""
    if is_launch_file(document.data):
        return select(check_launch_document(document, run, twin=twin, on_bug=on_bug))
    return check_document(document, run, on_bug=on_bug, select=select)


def named_ds_configs(documents: Sequence[Document], run: Run) -> dict[Path, Run]:
    """The ds_configs that launch files name and that are here, and what those say of the run."""
    runs: dict[Path, list[Run]] = {}
    for document in documents:
        found = find_ds_config(document) if is_launch_file(document.data) else None
        if found is not None:
            runs.setdefault(found, []).append(launched_run(document.data, run))
    return {file: several[0] if len(set(map(_facts, several))) == 1 else run for file, several in runs.items()}


def twins(documents: Sequence[Document]) -> dict[str, str]:
    """Launch files, by name, with the content of an earlier one in their folder: its name."""
    first: dict[tuple[Path, str], str] = {}
    found = {}
    for document in documents:
        if is_launch_file(document.data):
            earlier = first.setdefault((Path(document.name).parent, repr(document.data)), document.name)
            if earlier != document.name:
                found[document.name] = earlier
    return found


def _facts(run: Run) -> tuple[int | None, int]:
    return run.cluster.num_gpus, run.cluster.gpus_per_node


def check_for_accelerate(
    document: Document, run: Run, *, on_bug: OnBug | None = None, select: Select = everything
) -> Report:
    """As `check_document`, for a ds_config that a launch file names.

    Without a target this is what both the Trainer and accelerate find.
    """
    check = partial(check_document, document, on_bug=on_bug, select=select)
    report = check(run)
    if run.target is not None:
        return report
    trainer, script = (check(replace(run, target=target)).findings for target in TARGETS)
    both = _places(trainer) & _places(script)
    alone = [finding for finding in script if (finding.rule, finding.path) in both - _places(report.findings)]
    found = [finding for finding in report.findings if (finding.rule, finding.path) in both]
    by_line = sorted((*found, *alone), key=lambda finding: (finding.line or 0, finding.column or 0))
    return replace(report, findings=tuple(by_line))


def _places(findings: Iterable[Finding]) -> set[tuple[str, KeyPath]]:
    return {(finding.rule, finding.path) for finding in findings}


def _is_json(content: bytes) -> bool:
    """Whether the content of a file is JSON. DeepSpeed and the others ignore its name."""
    try:
        json.loads(content[: MAX_BYTES + 1])
    except (ValueError, RecursionError):
        return False
    return True


def _settings_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(names):
            file = Path(parent, name)
            # A link out of the folder was not meant by whoever named the folder, and --fix would follow it.
            named = name.lower().endswith(_JSON + _YAML)
            if named and file.is_file() and unreadable_reason(file, folder) is None:
                yield file


def is_meant_file(file: Path) -> bool:
    """Whether a file is a ds_config or a launch file for DeepSpeed by its content, perhaps a broken one."""
    try:
        content = read_bytes(file)
    except DocumentError:
        return False
    yaml = file.suffix.lower() in _YAML
    mentioned = mentions_launch(content) or (not yaml and mentions_ds_config(content))
    if len(content) > MAX_BYTES or not mentioned:
        return False
    try:
        return is_meant(parse_document(content, str(file), yaml=yaml, lenient=True).data)
    except DocumentError:
        return True
