"""What the rules say of optimizers and schedules, against a few steps with the installed DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lint.asking import MICRO, deepspeed_cases, found, said, zero
from tests.tiny import launch

pytestmark = pytest.mark.torch

CPU = {"offload_optimizer": {"device": "cpu"}}


def adamw(**params: Any) -> dict[str, Any]:
    """PyTorch's AdamW, which needs no compiler."""
    return optimizer("AdamW", torch_adam=True, **params)


def optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def schedule(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = deepspeed_cases("refused_optimizers")
"""What is tried -> the rule, a config, and what DeepSpeed says."""

STEPS: dict[str, dict[str, Any]] = deepspeed_cases("optimizer_steps")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("few_steps")
    asked, answered = folder / "cases.json", folder / "outcomes.json"
    cases: dict[str, Any] = {name: {"config": config} for name, (_, config, _) in REFUSED.items()}
    cases |= {name: {"config": config} for name, config in STEPS.items()}
    cases["client, old name"] = {"config": zero(2, cpu_offload=True), "client": "AdamW"}
    cases["client"] = {"config": zero(2, **CPU), "client": "AdamW"}
    asked.write_text(json.dumps(cases), encoding="utf-8")
    script = Path(__file__).with_name("few_steps.py")
    result = launch([script, asked, answered], ranks=1, launcher="none", cwd=folder)
    assert answered.exists(), result.stderr[-2000:]
    answers: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return answers


@pytest.mark.parametrize("name", REFUSED)
def test_deepspeed_stops_where_a_rule_says_so(name: str, outcomes: dict[str, Any]) -> None:
    rule, config, text = REFUSED[name]
    assert text in outcomes[name]["error"]
    assert [severity for _, severity in said(rule, config)] == ["error"]


@pytest.mark.parametrize("name", STEPS)
def test_what_no_rule_calls_an_error_trains(name: str, outcomes: dict[str, Any]) -> None:
    if name != "tuning":
        assert "error" not in outcomes[name]


def test_which_adam_is_built(outcomes: dict[str, Any]) -> None:
    assert outcomes["Adam"]["kind"] == outcomes["AdamW without decoupling"]["kind"] == "AdamW"
    assert outcomes["Adam without decoupling"]["kind"] == "Adam"
    assert said("adam-is-adamw", STEPS["Adam"]) == [("optimizer.type", "info")]
    assert said("adam-is-adamw", STEPS["Adam without decoupling"]) == []
    path = "optimizer.params.adam_w_mode"
    assert said("adamw-mode", STEPS["AdamW without decoupling"]) == [(path, "warning")]


def test_permission_is_enough_for_sgd(outcomes: dict[str, Any]) -> None:
    assert outcomes["SGD with permission"]["moved"] > 0
    assert said("untested-optimizer", STEPS["SGD with permission"]) == []


def test_an_eps_of_0_ends_in_nan(outcomes: dict[str, Any]) -> None:
    assert outcomes["eps 0"]["moved"] is None
    assert said("zero-eps", STEPS["eps 0"]) == [("optimizer.params.eps", "warning")]


def test_offload_refuses_a_scripts_own_adam(outcomes: dict[str, Any]) -> None:
    assert "using ZeRO-Offload with a client provided optimizer" in outcomes["client"]["error"]
    assert outcomes["client, old name"] == outcomes["client"]
    place = "zero_optimization.offload_optimizer"
    config = zero(2, **CPU)
    assert said("script-optimizer-offload", config, target="deepspeed") == [(place, "warning")]


def test_clipping_cuts_the_steps_of_muon_under_zero(outcomes: dict[str, Any]) -> None:
    whole, cut = outcomes["Muon"], outcomes["Muon, clipped"]
    assert whole["norm"] > 2
    assert cut["moved"] < 0.6 * whole["moved"]
    for harmless in ("Muon without ZeRO, clipped", "Muon, the bf16 optimizer"):
        assert outcomes[harmless]["moved"] == pytest.approx(whole["moved"], rel=0.1)
        assert said("muon-clipping", STEPS[harmless]) == []
    assert said("muon-clipping", STEPS["Muon, clipped"]) == [("gradient_clipping", "warning")]
    assert said("muon-clipping", STEPS["Muon"]) == []


def test_a_plateau_is_never_left(outcomes: dict[str, Any]) -> None:
    assert outcomes["plateau"]["rate"] < 0.01
    assert said("plateau-schedule", STEPS["plateau"]) == [("scheduler.type", "warning")]


def test_which_rate_a_warmup_reaches(outcomes: dict[str, Any]) -> None:
    assert 9e-4 < outcomes["decay without a peak"]["rate"] <= 1e-3
    assert said("decay-default-rate", STEPS["decay without a peak"]) == [("scheduler.params", "error")]
    assert outcomes["warmup without a peak"]["rate"] == pytest.approx(2e-5)
    assert outcomes["another peak"]["rate"] == pytest.approx(2e-5)
    assert said("overridden-rate", STEPS["another peak"]) == [("optimizer.params.lr", "warning")]
    assert outcomes["Muon with one peak"]["rate"] == pytest.approx(1e-3)
    assert len(said("overridden-rate", STEPS["Muon with one peak"])) == 2


def test_where_a_schedule_starts(outcomes: dict[str, Any]) -> None:
    assert outcomes["in the middle"]["rate"] > 0.5
    path = "scheduler.params.last_batch_iteration"
    assert said("schedule-start", STEPS["in the middle"]) == [(path, "warning")]


def test_one_cycle_writes_the_betas(outcomes: dict[str, Any]) -> None:
    first, second = outcomes["one cycle"]["betas"]
    assert 0.8 <= first <= 0.9
    assert second == 0.99
    assert outcomes["one cycle, betas kept"]["betas"] == [0.9, 0.95]
    assert said("one-cycle-betas", STEPS["one cycle"]) == [("scheduler.params", "warning")]
    assert said("one-cycle-betas", STEPS["one cycle, betas kept"]) == []


def test_tuning_ends_the_run(outcomes: dict[str, Any]) -> None:
    assert outcomes["tuning"]["error"].startswith("SystemExit")
    (finding,) = found("autotuning-left-on", STEPS["tuning"])
    assert finding.message == "'autotuning' ends every run after 6 steps"


def test_one_rate_for_both_halves_of_muon(outcomes: dict[str, Any]) -> None:
    assert outcomes["Muon without learning rates"]["rate"] == 0.02
    rule = "muon-learning-rate"
    assert said(rule, STEPS["Muon without learning rates"]) == [("optimizer.params.lr", "warning")]
    assert said(rule, {**MICRO, **optimizer("Muon", lr=3e-4)}) == []
