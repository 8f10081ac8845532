"""Documents of all kinds for tests of the page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.estimation.requests import answer, shape
from zerokit.estimation import verdict
from zerokit.estimation.as_json import as_data, sweep_data
from zerokit.training.report import RunReport
from zerokit.units import GIB

RUN = RunReport(
    run_id="8ebe1c29", zerokit_version="0.1.0", versions={"torch": "2.13.0"}, git_commit=None, seed=42,
    data_seed=42, num_parameters=115008, num_trainable_parameters=115008, zero_stage=2, world_size=2,
    parallel={"data": 2, "sequence": 1, "tensor": 1},
    precision="bf16",
    device="cuda", num_train_examples=200, num_eval_examples=10, steps=30, resumed_from_step=0,
    train_seconds=12.5, tokens=2172, tokens_per_second=1392.8, step_seconds=0.041, mfu=0.41, loss_before=7.1,
    loss_after=6.2, metrics_before={}, metrics_after={}, train_loss=6.8, model_states_bytes=1380096,
    expected_peak_bytes=3 * GIB, peak_memory_bytes=4 * GIB,
    padding=None, recipe={"model": {"path": "models/tiny"}}, ds_config={"zero_optimization": {"stage": 2}},
)  # fmt: skip


def plan() -> dict[str, Any]:
    """A plan with 73 configurations and a rehearsal, made by hand from a real rehearsal."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("plan.json").read_text(encoding="utf-8"))
    return data


def documents() -> dict[str, dict[str, Any]]:
    """A document of each kind."""
    one, other = (answer(model=shape("llama-3.1-8b"), zero_stage=stage) for stage in (2, 3))
    return {
        "plan": plan(),
        "estimate": as_data(one, verdict(one, 80 * GIB)),
        "sweep": sweep_data([(one, verdict(one, 80 * GIB)), (other, None)]),
        "rehearsal": plan()["plans"][0]["rehearsal"],
        "run": asdict(RUN),
    }


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload=alert(1) \u2028${{7*7}}"


def hostile(data: Any) -> Any:
    """The same with an attack at the end of every free text, and in a key of the ds_config."""
    fixed = {"fit", "verdict", "goal", "unit", "kind", "phase", "category", "zero_stage", "deadline", "budget"}
    if isinstance(data, list):
        return [hostile(item) for item in data]
    if not isinstance(data, dict):
        return data + HOSTILE if isinstance(data, str) else data
    changed = {
        key: value if key in fixed and isinstance(value, str) else hostile(value) for key, value in data.items()
    }
    if "ds_config" in changed and changed["ds_config"] is not None:
        changed["ds_config"] = {**changed["ds_config"], HOSTILE: HOSTILE}
    return changed
