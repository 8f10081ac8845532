"""What the rules say of number formats, against what a step with the installed DeepSpeed does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lint.asking import MICRO, deepspeed_cases, said, zero
from tests.tiny import launch

pytestmark = pytest.mark.torch

FP16: dict[str, Any] = {"fp16": {"enabled": True}}
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
IN_FP16: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "fp16"}}
IN_BF16: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "bf16"}}
UNCLIPPED = {"gradient_clipping": 0.0}
CLIPPED = {"gradient_clipping": 0.001}

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = deepspeed_cases("refused_precisions")
"""What is tried -> the rule, a config, and what DeepSpeed says."""

CAST = {**zero(1), "bf16": {"enabled": True}, "fp16": {"enabled": False, "auto_cast": True}}

STEPS: dict[str, dict[str, Any]] = {
    "bf16 without ZeRO": {**zero(0), **BF16, **UNCLIPPED},
    "fp16 without ZeRO": {**zero(0), **FP16, **UNCLIPPED},
    "fp16 without ZeRO or scaling": {**zero(0), "fp16": {"enabled": True, "loss_scale": 1}, **UNCLIPPED},
    "fp16 in stage 1": {**zero(1), **FP16, **UNCLIPPED},
    "fp32": {**zero(1), **UNCLIPPED},
    "fp32, clipped": {**zero(1), **CLIPPED},
    "autocast": {**zero(1), **IN_FP16, **UNCLIPPED},
    "autocast, clipped": {**zero(1), **IN_FP16, **CLIPPED},
    "autocast in bf16, clipped": {**zero(1), **IN_BF16, **CLIPPED},
    "autocast on fp16": {**zero(1), **FP16, **IN_FP16, **UNCLIPPED},
    "auto_cast": CAST,
    "fp32 sums in stage 1": {**zero(1), **BF16, "data_types": {"grad_accum_dtype": "fp32"}},
    "immediate update in stage 2": {**zero(2), "bf16": {"enabled": True, "immediate_grad_update": True}},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("half_precision")
    asked, answered = folder / "configs.json", folder / "outcomes.json"
    configs = {name: config for name, (_, config, _) in REFUSED.items()} | STEPS
    asked.write_text(json.dumps(configs), encoding="utf-8")
    script = Path(__file__).with_name("half_precision.py")
    result = launch([script, asked, answered], ranks=1, launcher="none", cwd=folder)
    assert result.returncode == 0, result.stderr[-2000:]
    answers: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    return answers


@pytest.mark.parametrize("name", REFUSED)
def test_deepspeed_stops_where_a_rule_says_so(name: str, outcomes: dict[str, Any]) -> None:
    rule, config, text = REFUSED[name]
    assert text in outcomes[name]["error"]
    assert [severity for _, severity in said(rule, config, target="deepspeed")] == ["error"]


def test_fp16_without_zero_does_not_train(outcomes: dict[str, Any]) -> None:
    right = outcomes["bf16 without ZeRO"]["update"]
    assert outcomes["fp16 in stage 1"]["update"] == pytest.approx(right, rel=0.5)
    assert outcomes["fp16 without ZeRO or scaling"]["update"] == pytest.approx(right, rel=0.5)
    wrong = outcomes["fp16 without ZeRO"]
    assert wrong["update"] < right / 5  # what is left is the rounding of weights to fp16
    rule = "fp16-without-zero"
    optimizer = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
    assert said(rule, {**STEPS["fp16 without ZeRO"], **optimizer}) == [("fp16.enabled", "error")]
    assert said(rule, STEPS["fp16 without ZeRO"]) == [("fp16.enabled", "warning")]
    assert said(rule, {**STEPS["fp16 without ZeRO or scaling"], **optimizer}) == []


def test_autocast_in_fp16_clips_what_is_still_scaled(outcomes: dict[str, Any]) -> None:
    right = outcomes["fp32"]["update"]
    assert right > 0.002
    assert outcomes["fp32, clipped"]["update"] == pytest.approx(0.001, rel=0.05)
    assert outcomes["autocast in bf16, clipped"]["update"] == pytest.approx(0.001, rel=0.05)
    assert outcomes["autocast"]["update"] == pytest.approx(right, rel=0.05)
    assert outcomes["autocast"]["reported"] == pytest.approx(65536 * right, rel=0.05)
    assert outcomes["autocast, clipped"]["update"] < 1e-6
    rule = "autocast-clipping"
    assert said(rule, STEPS["autocast, clipped"]) == [("gradient_clipping", "error")]
    assert said(rule, {**zero(1), **IN_FP16}) == [("torch_autocast.dtype", "error")]
    assert said(rule, STEPS["autocast"]) == said(rule, STEPS["autocast in bf16, clipped"]) == []


def test_autocast_on_fp16_divides_twice(outcomes: dict[str, Any]) -> None:
    assert outcomes["autocast on fp16"]["update"] < outcomes["fp16 in stage 1"]["update"] / 5
    assert said("autocast-and-precision", STEPS["autocast on fp16"]) == [("torch_autocast.enabled", "error")]


def test_auto_cast_acts_although_fp16_is_off(outcomes: dict[str, Any]) -> None:
    assert "must have the same dtype" in outcomes["auto_cast"]["error"]
    assert said("fp16-auto-cast", CAST) == [("fp16.auto_cast", "warning")]


def test_the_optimizer_that_updates_at_once_is_there_where_the_rule_is_silent(outcomes: dict[str, Any]) -> None:
    assert outcomes["fp32 sums in stage 1"]["optimizer"] == "BF16_Optimizer"
    assert outcomes["immediate update in stage 2"]["optimizer"] == "DeepSpeedZeroOptimizer"
    rule, path = "immediate-update", "bf16.immediate_grad_update"
    assert said(rule, STEPS["immediate update in stage 2"]) == [(path, "warning")]
    asked = {"bf16": {"enabled": True, "immediate_grad_update": True}}
    assert said(rule, {**STEPS["fp32 sums in stage 1"], **asked}) == []
    assert said(rule, {**MICRO, **asked, "zero_optimization": {"stage": 1}}) == [(path, "warning")]
