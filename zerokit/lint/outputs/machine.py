"""The report as data, for ``--format json``."""

from collections.abc import Sequence
from typing import Any

from zerokit.documents import dotted
from zerokit.findings import Finding
from zerokit.lint.outputs.checked import CheckedFile


def to_data(files: Sequence[CheckedFile]) -> dict[str, Any]:
    """``{"files": [{"file", "findings": [...], ...}], "not_run": [{"rule", "needs"}]}``."""
    not_run = {rule: needs for file in files for rule, needs in file.report.not_run.items()}
    return {
        "files": [_file(file) for file in files],
        "not_run": [{"rule": rule, "needs": list(needs)} for rule, needs in not_run.items()],
    }


def _file(file: CheckedFile) -> dict[str, Any]:
    data: dict[str, Any] = {"file": file.name, "findings": [_finding(finding) for finding in file.report.findings]}
    if file.error is not None:
        line, column = file.error_place
        data["error"] = {"line": line, "column": column, "message": file.error.message, "hint": file.error.hint}
    if file.report.suppressed:
        data["suppressed"] = [_finding(finding) for finding in file.report.suppressed]
    if file.fixed:
        data["fixed"] = [_finding(finding) for finding in file.fixed]
    return data


def _finding(finding: Finding) -> dict[str, Any]:
    data: dict[str, Any] = {
        "rule": finding.rule,
        "severity": finding.severity,
        "path": dotted(finding.path),
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "hint": finding.hint,
        "fixable": bool(finding.fix),
    }
    if finding.also:
        data["paths"] = [dotted(path) for path in (finding.path, *finding.also)]
    return data
