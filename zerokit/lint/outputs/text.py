"""The report for people: one line a finding, which other programs can search too."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from zerokit.documents import dotted
from zerokit.errors import visible
from zerokit.findings import Finding
from zerokit.lint.outputs.checked import CheckedFile, counted
from zerokit.reporting.tables import StyledLine
from zerokit.reporting.terminal import BAD, DOUBTFUL, GOOD, REMARK
from zerokit.units import quantity

_STYLES = {"error": BAD, "warning": DOUBTFUL, "info": REMARK, "fixed": GOOD}

_MOST_NAMES = 3
_LEAST_FOLDED = 3
"""Files with the same finding, which are then one line."""
_MOST_PLACES = 20
_MOST_OPTIONS = 3
"""Of rules that were not run; where there are more, JSON and ``zerokit explain`` name them."""


def text_lines(files: Sequence[CheckedFile], nothing: str = "nothing found") -> Iterator[StyledLine]:
    """Findings, files without any, what was not checked, and a summary.

    Args:
        files: what was checked; those with an error are left out. What is the same in several is one line.
        nothing: what to print for a file without findings.
    """
    readable = [file for file in files if file.error is None]
    repeated = _repeated(readable)
    clean = sum(not file.report.findings and file.other_type is None for file in readable)
    for file in readable:
        for finding in file.fixed:
            yield _line(file.name, "fixed", finding)
        for finding in file.report.findings:
            places = repeated.get(_key(finding), [])
            if len(places) < _LEAST_FOLDED:
                yield _line(file.name, finding.severity, finding)
            elif places[0] == (file.name, finding):
                yield _line(f"{len(places)} files", finding.severity, replace(finding, line=None, column=None))
                yield [(f"    {_listed(places)}", "dim")]
        if file.other_type is not None:
            starts = f"starts {file.other_type}, not DeepSpeed; only how it starts processes is checked"
            yield [(f"{visible(file.name)}: ", ""), (visible(starts), "dim")]
        elif not file.report.findings and clean < _LEAST_FOLDED:
            yield [(f"{visible(file.name)}: ", ""), (nothing, GOOD)]
    if clean >= _LEAST_FOLDED:
        yield [(f"{clean} files: ", ""), (nothing, GOOD)]
    for line in (*_not_run(readable), *_summary(readable)):
        yield [(line, "dim")]


def _repeated(files: Sequence[CheckedFile]) -> dict[object, list[tuple[str, Finding]]]:
    """Each finding with the first place in every file that has it."""
    places: dict[object, dict[str, Finding]] = {}
    for file in files:
        for finding in file.report.findings:
            places.setdefault(_key(finding), {}).setdefault(file.name, finding)
    return {key: list(found.items()) for key, found in places.items()}


def _key(finding: Finding) -> object:
    return finding.severity, finding.rule, finding.path, finding.message, finding.hint


def _listed(places: Sequence[tuple[str, Finding]]) -> str:
    shown = ", ".join(visible(name) + _position(finding) for name, finding in places[:_MOST_PLACES])
    more = len(places) - _MOST_PLACES
    return f"{shown} and {more} more, which --format json lists" if more > 0 else shown


def line_of(name: str, finding: Finding) -> str:
    """The line of a finding in the file of that name."""
    return "".join(text for text, _ in _line(name, finding.severity, finding))


def _line(name: str, kind: str, finding: Finding) -> StyledLine:
    between = ": " if kind == "fixed" else ". "
    hint = f"{between}{finding.hint}" if finding.hint else ""
    inside = f" ({dotted(finding.path)})" if len(finding.path) > 1 and kind != "fixed" else ""
    return [
        (f"{visible(name)}{_position(finding)}: ", "bold"),
        (kind, _STYLES[kind]),
        (visible(f": {finding.message}{hint}"), ""),
        (visible(f"{inside} [{finding.rule}]"), "dim"),
    ]


def _position(finding: Finding) -> str:
    return "".join(f":{number}" for number in (finding.line, finding.column) if number is not None)


def _not_run(files: Sequence[CheckedFile]) -> Iterator[str]:
    """One line about the rules that did not run, and what they need."""
    rules: dict[str, tuple[str, ...]] = {}
    for file in files:
        rules.update(file.report.not_run)
    if not rules:
        return
    if len(rules) <= _MOST_NAMES:
        listed = ", ".join(f"{rule} (needs {' and '.join(map(_option, needs))})" for rule, needs in rules.items())
        yield f"not checked: {listed}"
        return
    count = Counter(need for needs in rules.values() for need in needs)
    options = ", ".join(_option(need) for need, _ in count.most_common(_MOST_OPTIONS))
    most = "most of them" if len(count) > _MOST_OPTIONS else "them"
    yield f"{len(rules)} rules not checked; to check {most} give {options}"


def _option(need: str) -> str:
    return f"--{need.replace('_', '-')}"


def _summary(files: Sequence[CheckedFile]) -> Iterator[str]:
    found = counted(files).items()
    fixed = sum(len(file.fixed) for file in files)
    suppressed = sum(len(file.report.suppressed) for file in files)
    if not found and not fixed and not suppressed:
        return
    parts = [f"{fixed} fixed"] * bool(fixed)
    parts += [f"{number} info" if kind == "info" else quantity(number, kind) for kind, number in found]
    parts += [f"{suppressed} switched off"] * bool(suppressed)
    fixable = sum(bool(finding.fix) for file in files for finding in file.report.findings)
    fix = f" ({fixable} can be fixed by --fix)" if fixable else ""
    yield f"{', '.join(parts)} in {quantity(len(files), 'file')}{fix}"
