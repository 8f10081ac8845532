from typing import Any

import pytest

from zerokit.documents import Document
from zerokit.errors import ZerokitError
from zerokit.findings import Finding
from zerokit.lint import Report, check_document
from zerokit.lint.selection import Selection

FOUND = tuple(
    Finding((), "m", rule=rule, severity=severity)  # type: ignore[arg-type]
    for rule, severity in (("unknown-key", "error"), ("stage3-key", "warning"), ("unused-disable", "info"))
)
REPORT = Report(FOUND, {"stage3-key": ("model",), "wrong-type": ("num_gpus",)}, FOUND[:2])


@pytest.mark.parametrize(
    ("selection", "findings", "not_run", "suppressed"),
    [
        ({}, 3, 2, 2),
        ({"least": "warning"}, 2, 2, 2),
        ({"least": "error"}, 1, 2, 1),
        ({"only": ["stage3-key"]}, 1, 1, 1),
        ({"only": ["stage3-key", "unknown-key"], "least": "error"}, 1, 1, 1),
        ({"disable": ["stage3-key"]}, 2, 1, 1),
        ({"only": ["stage3-key"], "disable": ["stage3-key"]}, 0, 0, 0),
    ],
)
def test_a_report_has_only_requested_findings(
    selection: dict[str, Any], findings: int, not_run: int, suppressed: int
) -> None:
    report = Selection(**selection).of(REPORT)
    assert (len(report.findings), len(report.not_run), len(report.suppressed)) == (findings, not_run, suppressed)


def test_a_finding_that_was_not_requested_hides_no_other() -> None:
    computed, fractional = "computed-micro-batch", "fractional-batch-size"
    file = Document({"train_batch_size": 16, "sequence_parallel_size": 2, "steps_per_print": 10}, "x.json")

    def said(**selection: Any) -> set[str]:
        report = check_document(file, select=Selection(**selection).of)
        return {finding.rule for finding in report.findings} & {computed, fractional}

    assert said() == said(disable=[computed]) == {fractional}
    assert said(only=[computed]) == said(disable=[fractional]) == {computed}


@pytest.mark.parametrize(
    ("selection", "where", "hint"),
    [
        ({"only": ["unknown-kee"]}, "--only", "Did you mean 'unknown-key'?"),
        ({"disable": ["stage3-key", "qqqqq"]}, "--disable", "lists all rules"),
    ],
)
def test_rules_that_do_not_exist_are_refused(selection: dict[str, Any], where: str, hint: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        Selection(**selection)
    assert caught.value.where == where
    assert hint in (caught.value.hint or "")
