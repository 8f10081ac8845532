from typing import Any

import pytest

from zerokit.documents import parse_json
from zerokit.lint import Report, check_config, check_document

ZERO2 = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "stage3_max_live_parameters": 5, "stage3_max_reuse_distance": 5},
}
KEY = "stage3-key"


def report_of(disable: Any, **more: Any) -> Report:
    return check_config({**ZERO2, **more, "_zerokit": {"disable": disable}})


def rules(report: Report) -> list[str]:
    """The rules that these tests are about; a sparse config gives reason for some information besides."""
    about = (KEY, "unknown-key", "bad-disable", "unused-disable")
    return [finding.rule for finding in report.findings if finding.rule in about]


def test_nothing_is_switched_off_by_itself() -> None:
    report = check_config(ZERO2)
    assert rules(report) == [KEY, KEY]
    assert report.suppressed == ()


@pytest.mark.parametrize(
    ("disable", "left"),
    [
        ([KEY], 0),
        ([{"rule": KEY}], 0),
        ([{"rule": KEY, "reason": "shared with a stage-3 run"}], 0),
        ([{"rule": KEY, "path": "zero_optimization.stage3_max_live_parameters"}], 1),
        ([{"rule": KEY, "path": "zero_optimization"}], 0),
    ],
)
def test_a_file_switches_rules_off_for_itself(disable: Any, left: int) -> None:
    report = report_of(disable)
    assert rules(report) == [KEY] * left
    assert len(report.suppressed) == 2 - left


def test_errors_can_be_switched_off_too() -> None:
    report = report_of([KEY, "unknown-key"], gradient_cliping=1)
    assert report.ok
    assert [finding.rule for finding in report.suppressed].count("unknown-key") == 1


@pytest.mark.parametrize("path", ["zero", "zero_optimization.stage3_max", "optimizer"])
def test_a_path_means_itself_and_what_is_below(path: str) -> None:
    report = report_of([{"rule": KEY, "path": path}])
    assert sorted(rules(report)) == sorted([KEY, KEY, "unused-disable"])


@pytest.mark.parametrize(
    ("settings", "path", "hint"),
    [
        ({"disable": ["stage3-kee"]}, ("_zerokit", "disable", 0), "stage3-key"),
        ({"disable": [KEY, {"rules": KEY}]}, ("_zerokit", "disable", 1), '"RULE"'),
        ({"disable": [KEY, 3]}, ("_zerokit", "disable", 1), '"RULE"'),
        ({"disable": KEY}, ("_zerokit", "disable"), '["RULE", ...]'),
        ({"disabled": [KEY]}, ("_zerokit", "disabled"), "disable"),
        ([KEY], ("_zerokit",), '{"disable": ["RULE"]}'),
    ],
)
def test_what_is_not_understood_is_said(settings: Any, path: tuple[Any, ...], hint: str) -> None:
    report = check_config({**ZERO2, "_zerokit": settings})
    (bad,) = (finding for finding in report.findings if finding.rule == "bad-disable")
    assert (bad.path, bad.severity) == (path, "warning")
    assert bad.hint is not None
    assert hint in bad.hint


def test_comments_beside_the_list_are_comments() -> None:
    assert rules(check_config({**ZERO2, "_zerokit": {"_why": "x", "disable": [KEY]}})) == []


def test_what_is_switched_off_for_nothing_is_said_where_it_stands() -> None:
    report = check_document(
        parse_json('{"train_micro_batch_size_per_gpu": 1,\n"_zerokit": {"disable": [\n "unknown-key"]}}')
    )
    (finding,) = (found for found in report.findings if found.rule == "unused-disable")
    assert (finding.rule, finding.severity, finding.line, finding.column) == ("unused-disable", "info", 3, 2)
    assert finding.fix


def test_a_rule_that_could_not_run_is_not_unused() -> None:
    rule, needs = next((rule, needs) for rule, needs in check_config(ZERO2).not_run.items() if needs)
    assert needs
    assert "unused-disable" not in rules(report_of([KEY, rule]))
