import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.json_data import load_json
from zerokit.documents import parse_json
from zerokit.errors import DocumentError
from zerokit.findings import Finding
from zerokit.lint import Report, check_document
from zerokit.lint.outputs import CheckedFile, counted, text_lines, to_data, to_github, to_sarif
from zerokit.lint.outputs.sarif import SCHEMA
from zerokit.lint.selection import Selection

TEXT = """{
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {"stage": 2, "overlap_com": true, "stage3_max_live_parameters": 5},
  "gradient_cliping": 1,
  "_zerokit": {"disable": [{"rule": "unknown-key", "path": "gradient_cliping"}]}
}
"""
REPORT = Selection(only=("unknown-key", "stage3-key", "tensor-parallel-heads")).of(check_document(parse_json(TEXT)))
FILE = CheckedFile("conf/ds.json", REPORT)
GOOD = CheckedFile("good.json", Report((), {}))
BROKEN = CheckedFile(
    "bad.json", Report((), {}), error=DocumentError("a comma is missing", where="bad.json:3:9", hint="Add it")
)


def lines(*files: CheckedFile) -> list[str]:
    return ["".join(text for text, _ in line) for line in text_lines(files)]


def test_the_example_has_what_the_tests_speak_of() -> None:
    assert [(finding.rule, finding.severity) for finding in REPORT.findings] == [
        ("unknown-key", "error"),
        ("stage3-key", "warning"),
    ]
    assert [finding.rule for finding in REPORT.suppressed] == ["unknown-key"]
    assert REPORT.not_run
    assert counted([FILE, FILE, GOOD]) == {"error": 2, "warning": 2}


def test_text_has_a_line_for_each_finding_and_file_and_what_was_left_out() -> None:
    first, second, good, left_out, summary = lines(FILE, GOOD, BROKEN)
    assert first.startswith("conf/ds.json:3:37: error: ")
    assert first.endswith("(zero_optimization.overlap_com) [unknown-key]")
    assert "Did you mean 'overlap_comm'?" in first
    assert second.startswith("conf/ds.json:3:58: warning: ")
    assert good == "good.json: nothing found"
    assert left_out == "not checked: tensor-parallel-heads (needs --model)"
    assert summary == "1 error, 1 warning, 1 switched off in 2 files (1 can be fixed by --fix)"


@pytest.mark.parametrize(
    ("not_run", "line"),
    [
        (
            {"a": ("model",), "b": ("num_gpus", "gpu_memory")},
            "not checked: a (needs --model), b (needs --num-gpus and --gpu-memory)",
        ),
        (
            {"a": ("model",), "b": ("model", "num_gpus"), "c": ("model",), "d": ("gpu_memory", "num_gpus")},
            "4 rules not checked; to check them give --model, --num-gpus, --gpu-memory",
        ),
        (
            {"a": ("recipe",), "b": ("gpu",), "c": ("model",), "d": ("num_gpus", "model", "gpu")},
            "4 rules not checked; to check most of them give --gpu, --model, --recipe",
        ),
    ],
)
def test_rules_that_were_not_run_are_named_or_if_many_counted(not_run: dict[str, tuple[str, ...]], line: str) -> None:
    assert lines(CheckedFile("x", Report((), not_run))) == ["x: nothing found", line]


def test_names_cannot_move_the_cursor_or_break_the_line() -> None:
    finding = Finding(("a", "\x1b[31m\n"), "unknown key '\x1b[31m\n\u2028'", "Remove\rit", rule="r")
    assert lines(CheckedFile("x", Report((finding,), {})))[0] == (
        "x: error: unknown key '\\x1b[31m\\n\\u2028'. Remove\\rit (a.\\x1b[31m\\n) [r]"
    )


def test_text_names_what_was_fixed() -> None:
    done = replace(REPORT.findings[0], hint="a -> b: 1")
    first, good, summary = lines(CheckedFile("a.json", Report((), {}), fixed=(done,)))
    assert first.startswith("a.json:3:37: fixed: ")
    assert first.endswith(": a -> b: 1 [unknown-key]")
    assert (good, summary) == ("a.json: nothing found", "1 fixed in 1 file")


def test_a_finding_without_a_place_has_none() -> None:
    finding = Finding((), "all of it", "Fix it", rule="r", severity="info")
    assert lines(CheckedFile("a", Report((finding,), {})))[0] == "a: info: all of it. Fix it [r]"


def test_data_has_the_agreed_form() -> None:
    data = json.loads(json.dumps(to_data([FILE, GOOD, BROKEN])))
    assert [file["file"] for file in data["files"]] == ["conf/ds.json", "good.json", "bad.json"]
    first = data["files"][0]["findings"][0]
    assert first == {
        "rule": "unknown-key",
        "severity": "error",
        "path": "zero_optimization.overlap_com",
        "line": 3,
        "column": 37,
        "message": "unknown key 'overlap_com'",
        "hint": first["hint"],
        "fixable": True,
    }
    assert [finding["path"] for finding in data["files"][0]["suppressed"]] == ["gradient_cliping"]
    assert data["files"][1] == {"file": "good.json", "findings": []}
    assert data["files"][2]["error"] == {"line": 3, "column": 9, "message": "a comma is missing", "hint": "Add it"}
    assert {item["rule"]: tuple(item["needs"]) for item in data["not_run"]} == dict(REPORT.not_run)


def unescaped(text: str) -> str:
    for char in "\n\r:,%":
        text = text.replace(f"%{ord(char):02X}", char)
    return text


def test_github_annotations_are_escaped() -> None:
    finding = Finding(("a:b", 0), "100% wrong,\r\nreally::", "Do\nthis", 7, 2, "info", "odd")
    (line,) = to_github([CheckedFile("C:\\x,y.json", Report((finding,), {}))]).splitlines()
    assert line.startswith("::notice file=C%3A\\x%2Cy.json,line=7,col=2,title=zerokit odd::")
    message = line.split("::", 2)[2]
    assert message == "a:b[0]: 100%25 wrong,%0D%0Areally::%0ADo%0Athis"
    assert unescaped(message) == "a:b[0]: 100% wrong,\r\nreally::\nDo\nthis"


def test_github_annotations_of_a_file() -> None:
    commands = to_github([FILE, GOOD, BROKEN]).splitlines()
    assert [command.split(" ")[0] for command in commands] == ["::error", "::warning", "::error"]
    assert commands[2] == "::error file=bad.json,line=3,col=9,title=zerokit::a comma is missing. Add it"


SARIF = load_json("lint/sarif_schema.json")
"""What the standard's schema asks of the parts that zerokit writes: names, types and needed properties."""


def test_sarif_is_what_the_standard_asks_for() -> None:
    log: Any = json.loads(json.dumps(to_sarif([FILE, GOOD, BROKEN])))
    jsonschema.Draft202012Validator.check_schema(SARIF)
    jsonschema.validate(log, SARIF)
    assert log["$schema"] == SCHEMA
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("unknown-key", "error"),
        ("stage3-key", "warning"),
        ("unknown-key", "error"),
    ]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert len(rules[result["ruleIndex"]]["help"]["text"]) > 100
    assert ["suppressions" in result for result in run["results"]] == [False, False, True]
    place = run["results"][0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "conf/ds.json"
    assert place["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 37}
    assert place["logicalLocations"] == [{"fullyQualifiedName": "zero_optimization.overlap_com"}]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert "a comma is missing" in notification["message"]["text"]


@pytest.mark.parametrize(
    ("name", "uri"),
    [("a b/ü.json", "a%20b/%C3%BC.json"), ("/tmp/a b.json", "file:///tmp/a%20b.json"), ("./a.json", "a.json")],
)
def test_sarif_names_files_by_uri(name: str, uri: str) -> None:
    log = to_sarif([CheckedFile(name, Report((), {}))])
    assert log["runs"][0]["artifacts"] == [{"location": {"uri": uri}}]


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("x.json:3:9", (3, 9)),
        ("x.json:3", (3, None)),
        ("x.json:3 (a.b)", (3, None)),
        ("x.json", (None, None)),
        (None, (None, None)),
    ],
)
def test_the_place_of_an_unreadable_file(where: str | None, place: tuple[int | None, int | None]) -> None:
    file = CheckedFile("x.json", Report((), {}), error=DocumentError("m", where=where))
    assert file.error_place == place
    assert Path(file.name).name == "x.json"
