"""A finished run beside the plan that it was planned by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import ConfigError
from zerokit.planning.compare import compare

PLAN = {
    "gpu": "H100-SXM",
    "gpus_per_node": 2,
    "parallel": {"data": 2},
    "offload": {},
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "chunked_loss": True,
    "rehearsed": False,
    "fit": "fits",
    "device_bytes": {"low": 100, "high": 200},
    "gpu_memory_bytes": 300,
    "host_bytes": {"low": 1, "high": 2},
    "step_seconds": {"low": 1.0, "mid": 2.0, "high": 3.0},
    "hours": {"low": 1.0, "mid": 2.0, "high": 3.0},
    "cost_usd": {"low": 1.0, "mid": 2.0, "high": 3.0},
    "usd_per_gpu_hour": 3.0,
    "bill": [],
    "meets": {"deadline": "none", "budget": "none"},
    "ds_config": {"bf16": {"enabled": True}},
}
REPORT = {
    **{"model": "m", "num_parameters": 1, "num_trainable_parameters": 1, "method": "full", "tokens": 1},
    **{"steps": 1800, "seq_len": 8, "global_batch_size": 4, "verdict": "", "meets_limits": True},
    **{"command": "", "rejected": [], "assumptions": [], "prices": []},
    "plans": [{**PLAN, "num_gpus": 1, "zero_stage": 2}, {**PLAN, "num_gpus": 2, "zero_stage": 3}],
}
RUN = {
    **{
        "world_size": 2,
        "zero_stage": 3,
        "num_parameters": 1,
        "steps": 1800,
        "step_seconds": 2.5,
        "train_seconds": 7200.0,
    },
    **{"peak_memory_bytes": 150, "device": "cuda", "precision": "bf16"},
    "recipe": {"training": {"per_device_train_batch_size": 2}},
}


def _compared(folder: Path, run: dict[str, Any], report: dict[str, Any] = REPORT) -> Any:
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "plan.json").write_text(json.dumps(report))
    return compare(folder / "run.json", folder / "plan.json")


def test_compares_the_plan_that_matches(tmp_path: Path) -> None:
    found = _compared(tmp_path, RUN)
    assert (found.plan, found.differences) == (2, [])
    figures = {one.figure: (one.predicted.mid, one.measured, one.is_within) for one in found.figures}
    assert figures == {
        "gpu_memory_bytes": (100, 150, True),
        "step_seconds": (2.0, 2.5, True),
        "training_hours": (1.0, 2.0, False),  # 1,800 steps of 1 to 3 s
        "training_cost_usd": (6.0, 12.0, False),
    }


def test_names_differences(tmp_path: Path) -> None:
    run = {**RUN, "world_size": 4, "steps": 30, "device": "cpu", "precision": "fp32"}
    found = _compared(tmp_path, run)
    assert found.differences == [
        "num_gpus: planned 2, run with 4",
        "precision: planned bf16, run with fp32",
        "gpu: planned H100-SXM, run on the CPU, whose memory is not compared",
        "steps: planned 1800, run with 30; hours are those of the run",
    ]
    assert "gpu_memory_bytes" not in [one.figure for one in found.figures]


@pytest.mark.parametrize(
    ("run", "report", "problem"),
    [
        ({**RUN, "world_size": "x"}, REPORT, "is no run.json"),
        (RUN, {**REPORT, "plans": []}, "has no plan"),
        (RUN, {"verdict": 1}, "is no plan.json"),
        ({**RUN, "step_seconds": None}, REPORT, "has no trained step"),
        ({**RUN, "num_parameters": 2}, REPORT, "this run has 2 parameters, and the plan is of m with 1"),
    ],
)
def test_refuses_other_files(tmp_path: Path, run: dict[str, Any], report: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _compared(tmp_path, run, report)
