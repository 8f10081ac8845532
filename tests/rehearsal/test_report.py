from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from tests.rehearsal.recordings import job, training
from zerokit.rehearsal.report.analysis import analyse
from zerokit.rehearsal.report.report import RehearsalReport


def test_the_agreed_keys_are_there() -> None:
    data = json.loads(analyse(training(), job()).model_dump_json())
    assert data.keys() >= {
        "world_size", "rank", "steps", "elapsed_seconds", "device", "host", "communication",
        "flops_per_step", "warnings",
    }  # fmt: skip
    assert data["device"].keys() >= {
        "peak_bytes", "steady_bytes", "reserved_peak_bytes", "peak_phase", "at_peak",
    }  # fmt: skip
    assert data["device"]["at_peak"].keys() == {
        "parameters", "gradients", "optimizer_states", "activations", "buffers", "other",
    }  # fmt: skip
    assert data["host"].keys() >= {"peak_bytes", "steady_bytes", "pinned_bytes"}
    assert data["communication"][0].keys() >= {"collective", "phase", "count", "bytes"}
    assert data["made_up"] == [
        {"what": "nonzero: assumed all true", "site": "train.py:40 in mask", "count": 3}
    ]
    assert data["suppressed"] == ["checkpoint in runs/a"]


def test_a_report_survives_json() -> None:
    report = analyse(training(), job())
    assert RehearsalReport.model_validate_json(report.model_dump_json()) == report


def test_a_report_does_not_change() -> None:
    report = analyse(training(), job())
    with pytest.raises(ValidationError):
        report.steps = 3  # type: ignore[misc]
