"""The cases of public bug reports are well formed, and what the record says of the light ones holds."""

from __future__ import annotations

import json
import re

import pytest

from tests.validation.reports.cases import CASES, FOLDER, Case, to_row
from tests.validation.reports.run import BEGIN, END, PAGE, VERDICTS, WRITTEN, table

KINDS = {"log", "ds_config", "launch YAML", "estimate", "rehearse", "checkpoint"}
ROWS = json.loads(WRITTEN.read_text(encoding="utf-8"))
PASSED = {row["case"] for row in ROWS if row["passes"]}
LIGHT = [case for case in CASES if case.is_light and case.name in PASSED]


def test_the_record_has_every_case() -> None:
    assert [row["case"] for row in ROWS] == [case.name for case in CASES]
    page = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert page.strip() == table(ROWS, CASES).strip()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_well_formed(case: Case) -> None:
    assert case.kind in KINDS
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.thread)
    assert re.fullmatch(r"20\d\d-[01]\d", case.date)
    assert all((case.cause, case.established, case.fix))
    assert case.before["verdict"] in VERDICTS
    assert case.after.get("verdict", "a") in VERDICTS
    for command in case.commands:
        for pattern in (*command.says, *command.silent):
            re.compile(pattern)
        for file in re.findall(r"\S+\.(?:log|json|yaml|py)", command.command):
            assert "{tmp}" in file or (FOLDER / case.name / file).exists(), file


@pytest.mark.parametrize("case", LIGHT, ids=lambda case: case.name)
def test_a_report_that_passed_still_passes(case: Case) -> None:
    row = to_row(case)
    assert row["passes"], row["faults"]
