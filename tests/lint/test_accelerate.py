"""What the rules say of a ds_config that accelerate hands over, against the installed accelerate."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.lint.examples import recipe
from zerokit.releases.versions import Version

CPU = {"offload_optimizer": {"device": "cpu"}}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """accelerate's DeepSpeedPlugin, with nothing said by the environment."""
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    return dataclasses.DeepSpeedPlugin


@pytest.mark.torch
def test_a_config_without_zero_is_refused(plugin: Any) -> None:
    with pytest.raises(ValueError, match="specify the ZeRO optimization config"):
        plugin(hf_ds_config=dict(MICRO))
    plugin(hf_ds_config=zero(0))
    rule = "accelerate-without-zero"
    for target in ("accelerate", "trainer"):
        assert said(rule, MICRO, target=target) == [("", "error")]
        assert said(rule, zero(0), target=target) == []
        assert said(rule, {**MICRO, "zero_optimisation": {"stage": 2}}, target=target) == []
    assert said(rule, MICRO, target="deepspeed") == said(rule, MICRO) == []


@pytest.mark.torch
def test_bf16_null_is_left_alone(plugin: Any) -> None:
    asked = {**zero(2), "bf16": None}
    config = plugin(hf_ds_config=copy.deepcopy(asked))
    config.set_mixed_precision("bf16")
    assert config.deepspeed_config["bf16"] is None
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'get'"):
        config.set_mixed_precision("fp16")
    assert said("null-section", asked, target="trainer") == [("bf16", "warning")]
    assert said("null-section", asked, target="deepspeed") == []


@pytest.mark.torch
def test_accumulation_steps_are_written_by_accelerate(plugin: Any) -> None:
    config = plugin(hf_ds_config=zero(2), gradient_accumulation_steps=8)
    assert config.deepspeed_config["gradient_accumulation_steps"] == 1
    assert "gradient_clipping" not in config.deepspeed_config
    lost = said("accelerate-lost-argument", zero(2), target="accelerate")
    assert lost == [("", "warning"), ("", "warning")]
    given = {**zero(2), "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}
    assert said("accelerate-lost-argument", given, target="accelerate") == []
    assert said("accelerate-lost-argument", zero(2), target="trainer") == []


def test_what_an_older_deepspeed_makes_of_no_clipping() -> None:
    run: dict[str, Any] = {"target": "accelerate", "deepspeed_version": Version(0, 18, 0)}
    messages = [finding.message for finding in found("accelerate-lost-argument", zero(2), **run)]
    assert "does not clip" in messages[1]


@pytest.mark.torch
def test_clipping_auto_stays_auto_until_accelerate_writes_1(plugin: Any) -> None:
    config = plugin(hf_ds_config={**zero(2), "gradient_clipping": "auto"})
    assert config.deepspeed_config["gradient_clipping"] == "auto"
    asked = {**zero(2), "gradient_clipping": "auto"}
    rule = "accelerate-auto-clipping"
    assert said(rule, asked, target="accelerate") == [("gradient_clipping", "info")]
    assert said(rule, asked, target="trainer") == []


@pytest.mark.torch
def test_which_optimizers_accelerate_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    adam = pytest.importorskip("deepspeed.ops.adam")
    mapping = pytest.importorskip("accelerate.utils.deepspeed").map_pytorch_optim_to_deepspeed
    monkeypatch.setattr(adam, "DeepSpeedCPUAdam", lambda groups, **given: given)
    weights = [torch.nn.Parameter(torch.zeros(2))]
    assert mapping(torch.optim.AdamW(weights))["adamw_mode"] is True
    for other in (torch.optim.SGD, torch.optim.Adafactor, torch.optim.RMSprop):
        assert mapping(other(weights, lr=0.1))["adamw_mode"] is False
    with pytest.raises(TypeError, match="adamw_mode"):
        mapping(torch.optim.Adagrad(weights, lr=0.1))
    rule, place = "accelerate-optimizer-swap", "zero_optimization.offload_optimizer"
    for optim, expected in (
        ("adafactor", [(place, "warning")]),
        ("sgd", [(place, "warning")]),
        ("adamw_torch_fused", []),
        ("adamw_torch_8bit", [(place, "warning")]),
        ("adagrad", [(place, "error")]),
    ):
        run = {"target": "trainer", "recipe": recipe(training={"optim": optim})}
        assert said(rule, zero(2, **CPU), **run) == expected
        assert said(rule, zero(2), **run) == []
        assert said(rule, {**zero(2, **CPU), "zero_force_ds_cpu_optimizer": False}, **run) == []
        assert said(rule, {**zero(2, **CPU), **ADAMW}, **run) == []
    assert said(rule, zero(2, **CPU), target="accelerate") == [(place, "info")]
    assert said(rule, zero(2, **CPU), target="trainer") == []


@pytest.mark.parametrize("more", [{}, {"scheduler": {"type": "WarmupLR", "params": {}}}])
def test_what_the_script_must_pass(more: Mapping[str, Any]) -> None:
    (finding,) = found("accelerate-dummies", {**zero(2), **ADAMW, **more}, target="accelerate")
    assert "DummyOptim" in finding.message
    assert ("lr_scheduler_callable" in finding.message) is not bool(more)
    assert said("accelerate-dummies", {**zero(2), **more}, target="accelerate") == []
    assert said("accelerate-dummies", {**zero(2), **ADAMW}, target="trainer") == []
