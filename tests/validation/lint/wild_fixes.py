"""Mends ds_config files that others have published, and asks DeepSpeed, the Trainer and accelerate about it.

``python -m tests.validation.lint.wild_fixes FOLDER [--write]`` takes each file of FOLDER (as
`tests/validation/lint/wild.py`) under each target: once with every fix made, as ``zerokit check --fix``
makes them, and once for each hint that says what to do, with that alone. What started before must start
after it. Settings that DeepSpeed reads may differ only under keys that a finding named, and a value that a
person gave must still be that value. What is not so is listed, and the exit code is 1. ``--write`` writes
the counts to results/wild_fixes.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lint.starting import Start, run_of, started
from tests.tiny import REPOSITORY
from tests.validation.lint.hints import edits_of
from zerokit.config.repairs import errors_of
from zerokit.documents import Document, KeyPath, dotted, has_value, leaves, parse_json, value_at
from zerokit.errors import DocumentError
from zerokit.findings import Edit, Finding, Move, Remove, SetValue
from zerokit.lint import Report, check_document
from zerokit.lint.files import read_file
from zerokit.lint.fix import fix_document
from zerokit.lint.rewrite import EditError, apply_edits
from zerokit.resolving.auto_word import TARGETS, Target
from zerokit.resolving.run import Run

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "wild_fixes.json"

_FOLLOW: dict[str, tuple[str, ...]] = {
    "cpu_offload": ("offload_optimizer", "device"),
    "cpu_offload_param": ("offload_param", "device"),
    "gradient_accumulation_steps": ("train_batch_size", "train_micro_batch_size_per_gpu"),
    "legacy_fusion": ("optimizer_legacy_fusion",),
    "params": ("optimizer_params",),
    "stage": ("zero_enabled", "zero_optimization_stage"),
    "torch_autocast": ("torch_autocast_dtype", "torch_autocast_enabled"),
}
"""Key -> others that DeepSpeed makes of it."""


@dataclass
class Tally:
    """What came of all trials under one target."""

    files: int = 0
    started: int = 0
    fixed: int = 0
    """Files with at least one fix."""
    fixes: Counter[str] = field(default_factory=Counter)
    """By rule."""
    hints: int = 0
    start_now: int = 0
    """Files with which nothing started, and does after the fixes."""
    differ: int = 0
    """Files of which DeepSpeed reads other settings after the fixes."""
    failures: list[str] = field(default_factory=list)


def try_text(text: str, name: str, known: Run, tally: Tally) -> None:
    """Try all fixes together and all hints one by one on a text, which a lenient reader takes."""
    document = parse_json(text, name, lenient=True)
    target = known.target
    assert target is not None
    report = check_document(document, known)
    run, before = _start(document, target)
    tally.files += 1
    tally.started += isinstance(before, Start)

    def failed(what: str) -> None:
        tally.failures.append(f"{name} ({target}): {what}")

    fixed = fix_document(document, lambda one: check_document(one, known))
    if fixed.done:
        tally.fixed += 1
        tally.fixes.update(finding.rule for finding in fixed.done)
        after = started(fixed.document.text or "", target, *run)
        problems = [*_problems(document, before, after, fixed.done), *_said_after(report, fixed.report, fixed.done)]
        for problem in problems:
            failed(f"--fix: {problem}")
        tally.differ += isinstance(before, Start) and isinstance(after, Start) and before != after
        if isinstance(before, str):
            tally.start_now += isinstance(_start(fixed.document, target)[1], Start)
    for finding in report.findings:
        for edit in edits_of(finding, document.data):
            tally.hints += 1
            for problem in _of_hint(document, report, finding, edit, before, known, run):
                failed(f"hint '{finding.hint}' of {finding.rule} at {dotted(finding.path)}: {problem}")


def _start(document: Document, target: Target) -> tuple[Any, Start | str]:
    """The first run that starts, or the first that was tried."""
    first = None
    for run in run_of(document.data, target):
        outcome = started(document.text or "", target, *run)
        if isinstance(outcome, Start):
            return run, outcome
        first = first or (run, outcome)
    assert first is not None
    return first


def _problems(document: Document, before: Start | str, after: Start | str, done: Iterable[Finding]) -> Iterator[str]:
    if isinstance(before, Start) and isinstance(after, str):
        yield f"it started before, and now: {after[:200]}"
    if isinstance(before, Start) and isinstance(after, Start):
        named = set(_named(done))
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path) and not named.intersection(path.split(".")):
                yield f"{path} was {before.get(path)!r} and is {after.get(path)!r}, but no finding says so"
        removed = {edit.path for finding in done for edit in finding.fix if isinstance(edit, Remove)}
        for place, given in leaves(document.data):
            path = dotted(place)
            same = path not in before or before[path] != given or _means_the_same(given, after.get(path))
            if not same and place not in removed:
                yield f"{path} is given as {given!r}, and becomes {after.get(path)!r}"
    for finding in done:
        for edit in finding.fix:
            yield from _overridden(document, finding, edit)


def _named(done: Iterable[Finding]) -> Iterator[str]:
    for finding in done:
        for edit in finding.fix:
            places = [] if not isinstance(edit, SetValue | Remove | Move) else [edit.path]
            places += [edit.to] if isinstance(edit, Move) else []
            keys = [str(key) for path in places for key in path[-2:]]
            if isinstance(edit, SetValue) and isinstance(edit.value, dict):
                keys += edit.value
            for key in keys:
                yield from (key, *_FOLLOW.get(key, ()))


def _overridden(document: Document, finding: Finding, edit: Edit) -> Iterator[str]:
    """Whether a fix puts another value in place of one that a person gave and DeepSpeed would take."""
    if not isinstance(edit, SetValue) or not has_value(document.data, edit.path):
        return
    old = value_at(document.data, edit.path)
    if not _means_the_same(old, edit.value):
        yield f"{finding.rule} puts {edit.value!r} in place of {old!r} at {dotted(edit.path)}"


def _means_the_same(old: Any, new: Any) -> bool:
    if isinstance(new, dict) and len(new) == 1:
        (inner,) = new.values()
        return _means_the_same(old, inner) or (old is True and inner == "cpu")
    if isinstance(new, bool):
        return str(old).strip().lower() in (("true", "yes", "on", "1") if new else ("false", "no", "off", "0"))
    if isinstance(new, int | float):
        if isinstance(old, bool):
            return int(old) == new  # the stage, for ZeRO as a switch
        try:
            return float(str(old).replace("_", "")) == new
        except ValueError:
            return isinstance(old, str) and old[-1:].isalpha()  # 1k, 1MiB: tests/config has them
    return str(old).strip().lower() == str(new).lower() or {str(old), str(new)} <= {"bfp16", "bfloat16", "bf16"}


def _said_after(before: Report, after: Report, fixed: Iterable[Finding]) -> Iterator[str]:
    """What a fixed file must not be told: the same again, and errors that it had not."""
    said = {(finding.rule, finding.path, finding.message) for finding in after.findings}
    for finding in fixed:
        if (finding.rule, finding.path, finding.message) in said:
            yield f"{finding.rule} at {dotted(finding.path)} is still said"
    known = {(finding.rule, known) for finding in before.findings for known in (finding.path, finding.message)}
    for finding in after.findings:
        fresh = not known & {(finding.rule, finding.path), (finding.rule, finding.message)}
        if finding.severity == "error" and fresh:
            yield f"a new error: {finding.message} [{finding.rule}]"


def _of_hint(
    document: Document, report: Report, finding: Finding, edit: Edit, before: Start | str, known: Run, run: Any
) -> Iterator[str]:
    try:
        after = apply_edits(document, [edit])
    except EditError as error:
        yield f"cannot be done: {error}"
        return
    assert known.target is not None
    outcome = started(after.text or "", known.target, *run)
    for problem in _said_after(report, check_document(after, known), [finding]):
        # Where the same is read, a rule may only be sure by now: a key that was not understood is gone.
        if outcome != before or not problem.startswith("a new error"):
            yield problem
    if isinstance(before, Start) and isinstance(outcome, str):
        outcome = _start(after, known.target)[1]
        if isinstance(outcome, str):
            yield f"it started before, and now: {outcome[:200]}"
    fresh = errors_of(after.data) - errors_of(document.data)
    places: set[KeyPath] = {place for place, _ in fresh}
    if places:
        yield f"makes a mistake at {', '.join(map(dotted, sorted(places, key=str)))}"


def try_folder(folder: Path) -> dict[Target, Tally]:
    """All files that the folder's index.json names and that can be read, under each target."""
    logging.disable(logging.CRITICAL)
    tallies: dict[Target, Tally] = {target: Tally() for target in TARGETS}
    for row in json.loads((folder / "index.json").read_text(encoding="utf-8")):
        try:
            text = read_file(folder / row["file"]).text or ""
        except DocumentError:
            continue
        for target, tally in tallies.items():
            try_text(text, row["id"], Run.of(target=target), tally)
    return tallies


def figures(tallies: dict[Target, Tally]) -> dict[str, Any]:
    """What results/wild_fixes.json holds."""
    return {
        "what": "Fixes and hints of zerokit check on public ds_config files, before and after, by target",
        "made_by": "python -m tests.validation.lint.wild_fixes FOLDER --write",
        "targets": {
            target: {
                "files": tally.files,
                "started": tally.started,
                "fixed": tally.fixed,
                "fixes": dict(sorted(tally.fixes.items())),
                "started_and_stop_now": sum("it started before" in failure for failure in tally.failures),
                "stopped_and_start_now": tally.start_now,
                "read_otherwise_where_a_finding_says_so": tally.differ,
                "hints_tried": tally.hints,
                "failures": len(tally.failures),
            }
            for target, tally in tallies.items()
        },
    }


def main() -> int:
    """Try the folder, and write what came out if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="rewrite the figures in docs/")
    arguments = parser.parse_args()
    tallies = try_folder(arguments.folder)
    numbers = json.dumps(figures(tallies), indent=1) + "\n"
    if arguments.write:
        WRITTEN.write_text(numbers, encoding="utf-8")
    else:
        print(numbers)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
