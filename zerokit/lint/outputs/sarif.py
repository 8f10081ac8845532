"""The report as SARIF 2.1.0, which code-scanning services and editors read.

The form is that of the OASIS standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from zerokit import __version__
from zerokit.documents import dotted
from zerokit.findings import Finding
from zerokit.lint.outputs.checked import CheckedFile
from zerokit.lint.rule import RULES, Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def to_sarif(files: Sequence[CheckedFile]) -> dict[str, Any]:
    """One run over all files, with the text of every rule that found something."""
    seen = {
        finding.rule: None
        for file in files
        for finding in (*file.report.findings, *file.report.suppressed)
        if finding.rule in RULES
    }
    index = {rule: at for at, rule in enumerate(seen)}
    unreadable = [file for file in files if file.error is not None]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "zerokit",
                        "semanticVersion": __version__,
                        "rules": [_rule(RULES[rule]) for rule in seen],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": not unreadable,
                        "toolExecutionNotifications": [_notification(file) for file in unreadable],
                    }
                ],
                "artifacts": [{"location": {"uri": _uri(file.name)}} for file in files],
                "results": list(_results(files, index)),
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.text},
        "help": {"text": rule.text, "markdown": rule.text},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": [rule.topic]},
    }


def _results(files: Sequence[CheckedFile], index: dict[str, int]) -> Iterator[dict[str, Any]]:
    for file in files:
        for finding in file.report.findings:
            yield _result(finding, file.name, index)
        for finding in file.report.suppressed:
            yield {**_result(finding, file.name, index), "suppressions": [{"kind": "inSource"}]}


def _result(finding: Finding, file: str, index: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message + (f". {finding.hint}" if finding.hint else "")},
        "locations": [_location(file, finding.line, finding.column)],
    }
    if finding.rule in index:
        result["ruleIndex"] = index[finding.rule]
    if finding.path:
        result["locations"][0]["logicalLocations"] = [
            {"fullyQualifiedName": dotted(path)} for path in (finding.path, *finding.also)
        ]
    return result


def _notification(file: CheckedFile) -> dict[str, Any]:
    return {
        "level": "error",
        "message": {"text": str(file.error)},
        "locations": [_location(file.name, *file.error_place)],
    }


def _location(file: str, line: int | None, column: int | None) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if line is not None:
        place["region"] = {"startLine": line, **({"startColumn": column} if column is not None else {})}
    return {"physicalLocation": place}


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
