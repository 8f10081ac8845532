from __future__ import annotations

from typing import Any

import pytest

from tests.estimation.requests import answer, shape
from zerokit.estimation import verdict
from zerokit.estimation.as_json import as_data
from zerokit.estimation.explain import explanation
from zerokit.memory import Estimate, Lora, total_bytes
from zerokit.reporting.phases import EARLY_PHASES
from zerokit.units import GIB

RUNS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1, "precision": "fp16", "optimizer": "fused_adam"},
    {"zero_stage": 1, "gradient_checkpointing": True, "optimizer": "adamw"},
    {"zero_stage": 2, "gradient_accumulation_steps": 4},
    {"zero_stage": 2, "offload_optimizer": "cpu", "gradient_accumulation_steps": 4},
    {"zero_stage": 3, "precision": "fp16"},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"},
    {"zero_stage": 3, "lora": Lora(8)},
    {"zero_stage": 3, "model": 7 * 10**9},
    {"zero_stage": 3, "model": shape("deepseek-v2"), "offload_optimizer": "cpu"},
]


@pytest.fixture(params=RUNS, ids=str)
def one(request: pytest.FixtureRequest) -> Estimate:
    return answer(**request.param)


def test_terms_add_up_to_the_peaks(one: Estimate) -> None:
    assert total_bytes(one.device.terms_at_peak) == one.device.peak_bytes
    assert total_bytes(one.host.terms_at_peak) == one.host.peak_bytes


def test_components_of_the_json_make_the_peak(one: Estimate) -> None:
    device = as_data(one)["device"]
    phase = device["peak_phase"]
    phases = {phase} if phase in EARLY_PHASES else {phase, "always"}
    held = [term["bytes"] for term in device["components"] if term["phase"] in phases]
    assert sum(held) == device["peak_bytes"]
    steady = [term["bytes"] for term in device["components"] if term["phase"] == "always"]
    assert sum(steady) == device["steady_bytes"]


def test_states_are_written_as_in_the_paper() -> None:
    symbols = {
        stage: " + ".join(line.symbols for line in answer(zero_stage=stage).model_states.each) for stage in range(4)
    }
    assert symbols == {0: "2Φ + 2Φ + 12Φ", 1: "2Φ + 2Φ + 12Φ/N", 2: "2Φ + 2Φ/N + 12Φ/N", 3: "2Φ/N + 2Φ/N + 12Φ/N"}
    trained = [line.symbols for line in answer(zero_stage=3, lora=Lora(8)).model_states.each]
    assert trained == ["2Φ/N", "2Φₜ/N", "12Φₜ/N"]


def test_model_states_say_where_they_are_offloaded_to() -> None:
    lines = answer(zero_stage=3, offload_optimizer="nvme", offload_param="cpu").model_states.each
    assert [(line.where, line.gpu_bytes) for line in lines] == [("host", 0), ("host", 0), ("NVMe", 0)]
    assert all(line.bytes > 0 for line in lines)


def test_the_explanation_names_every_formula_and_source(one: Estimate) -> None:
    text = "\n".join(explanation(one))
    for term in (*one.terms, *one.overheads):
        assert term.formula in text
        assert term.source in text
    assert f"{one.device.peak_bytes:,}" in text


def test_the_fit_is_in_the_json() -> None:
    one = answer()
    data = as_data(one, verdict(one, 80 * GIB))
    assert data["fit"]["verdict"] == "fits"
    assert data["fit"]["needed_high_bytes"] == data["device"]["high_bytes"] == one.device_high_bytes
