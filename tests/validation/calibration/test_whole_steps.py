"""Whole steps of a machine: what was recorded, and one plan as a sample of how."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.validation.calibration.whole_steps import BEGIN, END, PAGE, WARM, WRITTEN, plans, predicted, summary, table

RECORDED = json.loads(WRITTEN.read_text(encoding="utf-8"))


def test_recorded_steps_are_predicted() -> None:
    """As the summary says, in which no row may be missing."""
    rows = RECORDED["rows"]
    assert [row["plan"] for row in rows] == [plan.name for plan in plans()]
    assert {name: RECORDED[name] for name in summary(rows)} == summary(rows)
    assert RECORDED["median_error"] <= 0.10
    assert all(row["low"] <= row["predicted"] <= row["high"] for row in rows)


def test_the_page_has_what_was_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0] == table(RECORDED)


@pytest.mark.rehearsal
def test_a_plan_s_steps_are_those_of_its_rehearsal(tmp_path: Path) -> None:
    """The real ones are in the record: here, that the script's own clock is the report's."""
    tiny = dataclasses.replace(next(plans()), hidden_size=64, layers=1, batch=1, length=64, steps=WARM + 2)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(dataclasses.asdict(tiny)), encoding="utf-8")
    card = {"gpu": {"name": "CPU", "platform": "cpu", "nominal_gb": 16, "bandwidth_gb_s": 10, "tflops": {"fp32": 0.1}}}
    hardware = tmp_path / "machine.json"
    hardware.write_text(json.dumps(card), encoding="utf-8")
    found = predicted(plan, hardware, forked=True)
    assert len(found["seconds"]) == tiny.steps
    assert found["low"] < 1 < found["high"]
    assert sum(found["shares"].values()) == pytest.approx(1, abs=0.01)
