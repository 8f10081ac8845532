"""float16 and the factor on its loss, against DeepSpeed's own scaler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.lint import check_config

pytestmark = pytest.mark.torch


def fp16(stage: Any = 2, enabled: Any = True, **keys: Any) -> dict[str, Any]:
    return {**zero(stage), "fp16": {"enabled": enabled, **keys}}


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"loss_scale_window": 0}, True),
        ({"min_loss_scale": 0}, True),
        ({"min_loss_scale": -1}, True),
        ({"min_loss_scale": 0, "loss_scale": 8}, False),
        ({"min_loss_scale": 0, "enabled": False}, False),
        ({"loss_scale_window": 1, "min_loss_scale": 1}, False),
    ],
)
def test_ranges_are_those_of_deepspeed(keys: dict[str, Any], refused: bool) -> None:
    precision_config = pytest.importorskip("deepspeed.runtime.precision_config")
    config = fp16(**keys)
    if refused:
        with pytest.raises(ValueError, match="must be > 0 when dynamic loss scaling"):
            precision_config.DeepSpeedFP16Config(**config["fp16"])
    else:
        precision_config.DeepSpeedFP16Config(**config["fp16"])
    assert bool(said("loss-scale-range", config)) is refused


def scaler(**keys: Any) -> Any:
    """DeepSpeed's adaptive scaler under a section `fp16`."""
    loss_scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    precision_config = pytest.importorskip("deepspeed.runtime.precision_config")
    torch = pytest.importorskip("torch")
    section = precision_config.DeepSpeedFP16Config(enabled=True, **keys)
    arguments = section.dynamic_loss_scale_args()
    return loss_scaler.CreateLossScaler(torch.half, section.loss_scale, section.loss_scale == 0, arguments)


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 0)


@pytest.mark.parametrize("hysteresis", [1, 2, 3])
def test_a_high_start_skips_as_many_steps_as_are_said(hysteresis: int) -> None:
    keys = {"initial_scale_power": 32, "hysteresis": hysteresis}
    theirs, skipped = scaler(**keys), 0
    while theirs.loss_scale > 2**16:
        theirs.update_scale(True)
        skipped += 1
    (finding,) = found("loss-scale-start", fp16(**keys))
    assert f"about {skipped} steps" in finding.message
    assert finding.severity == "info"


def test_a_floor_above_the_start_raises_the_scale() -> None:
    keys = {"initial_scale_power": 8, "min_loss_scale": 1024, "hysteresis": 1}
    theirs = scaler(**keys)
    theirs.update_scale(True)
    assert theirs.loss_scale == 1024
    with pytest.raises(Exception, match="already at minimum"):
        theirs.update_scale(True)
    assert said("loss-scale-floor", fp16(**keys)) == [("fp16.min_loss_scale", "warning")]
    assert said("loss-scale-floor", fp16(initial_scale_power=10, min_loss_scale=1024)) == []


def test_a_static_scale_stays_what_it_is() -> None:
    theirs = scaler(loss_scale=128)
    for _ in range(5):
        theirs.update_scale(True)
    assert theirs.loss_scale == 128
    assert said("static-loss-scale", fp16(loss_scale=128)) == [("fp16.loss_scale", "warning")]
    (finding,) = found("static-loss-scale", fp16(loss_scale=1))
    assert finding.message.startswith("there is no loss scaling")
    off = fp16(enabled=False, loss_scale=8)
    assert said("static-loss-scale", fp16()) == said("static-loss-scale", off) == []


def test_stage_0_has_no_hysteresis() -> None:
    loss_scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    torch = pytest.importorskip("torch")
    arguments = {"init_scale": 2**16, "scale_window": 1000, "delayed_shift": 4, "min_scale": 1}
    arguments["consecutive_hysteresis"] = True
    config = loss_scaler.LossScaleConfig(torch.float16, True, 0, arguments)
    assert not any("hysteresis" in name or "shift" in name for name in vars(config))


def test_options_of_fp16_that_is_off() -> None:
    rule = "fp16-off"
    (finding,) = found(rule, {**fp16(enabled=False, loss_scale=8, hysteresis=2), "bf16": {"enabled": True}})
    assert finding.message == "fp16 is off, so 'loss_scale' does nothing"
    (finding,) = found(rule, fp16(enabled=False, loss_scale=8, hysteresis=3))
    assert "'loss_scale' and 'hysteresis' do nothing" in finding.message
    assert found(rule, fp16(enabled=False, loss_scale=0, hysteresis=2)) == []
    assert found(rule, fp16(enabled="auto", loss_scale=8)) == []
    assert found(rule, {**zero(2), "fp16": {"loss_scale": 8}}) == []  # precision-off speaks of it


def test_a_scale_that_is_no_number_is_the_models_finding_alone() -> None:
    report = check_config({"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": True, "loss_scale": "x"}})
    assert [finding.rule for finding in report.findings if finding.path[:1] == ("fp16",)] == ["wrong-type"]
