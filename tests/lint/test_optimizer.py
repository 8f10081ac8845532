"""Rules of the optimizer: where they speak, and where not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config.optimizers import TORCH_OPTIMIZERS
from zerokit.findings import Remove, SetValue

CPU = {"offload_optimizer": {"device": "cpu"}}


def optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def params(key: str) -> str:
    return f"optimizer.params.{key}"


def test_what_depends_on_who_hands_the_config_over() -> None:
    assert said("script-optimizer", zero(2), target="trainer") == []
    assert said("script-optimizer", zero(2, **CPU), target="deepspeed") == []
    assert said("script-optimizer-offload", zero(2, **CPU), target="accelerate") == []
    assert said("script-optimizer-offload", {**zero(2, **CPU), "zero_force_ds_cpu_optimizer": False}) == []
    assert said("clipping-default", zero(2), target="trainer") == []
    decayed = {**MICRO, **optimizer("AdamW", lr="auto", weight_decay="auto")}
    assert said("decay-everything", decayed, target="trainer") == [(params("weight_decay"), "info")]
    assert said("decay-everything", decayed, target="accelerate") == []
    bare = {**MICRO, **optimizer("AdamW", weight_decay="auto")}
    (finding,) = found("default-learning-rate", bare, target="trainer")
    assert "learning_rate" in finding.message


def test_what_is_fixed() -> None:
    (sgd,) = found("untested-optimizer", {**zero(2), **optimizer("SGD")})
    assert sgd.fix == (SetValue(("zero_allow_untested_optimizer",), True),)
    (lamb,) = found("untested-optimizer", {**zero(2), **optimizer("Lamb")})
    assert lamb.fix == ()
    (muon,) = found("muon-reduce-scatter", {**zero(3), **optimizer("Muon")})
    assert muon.fix == (SetValue(("zero_optimization", "reduce_scatter"), False),)
    (argument,) = found("optimizer-argument", {**zero(2, **CPU), **optimizer("AdamW", set_grad_none=True)})
    assert argument.fix == (Remove(("optimizer", "params", "set_grad_none")),)
    (decay,) = found("optimizer-argument", {**zero(2, **CPU), **optimizer("Adagrad", lr_decay=0.1)})
    assert decay.fix == ()


@pytest.mark.torch
def test_the_optimizers_that_zero_takes_are_those_of_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

    torch = pytest.importorskip("torch")
    for name in TORCH_OPTIMIZERS:
        taken = getattr(torch.optim, name) in ZERO_SUPPORTED_OPTIMIZERS
        config = {**zero(2), **optimizer(name)}
        asked = bool(said("untested-optimizer", config)) or bool(said("optimizer-step", config))
        assert asked is not taken


@pytest.mark.torch
def test_where_arguments_are_taken_is_as_in_deepspeed() -> None:
    ops = pytest.importorskip("deepspeed.ops")
    torch = pytest.importorskip("torch")
    classes = {
        "AdamW": (ops.adam.FusedAdam, ops.adam.DeepSpeedCPUAdam),
        "Lion": (ops.lion.FusedLion, ops.lion.DeepSpeedCPULion),
        "Adagrad": (torch.optim.Adagrad, ops.adagrad.DeepSpeedCPUAdagrad),
    }
    values = {"lr_decay": 0.1, "initial_accumulator_value": 0.1}
    asked = 0
    for kind, (on_gpu, on_host) in classes.items():
        takes = [set(inspect.signature(each).parameters) for each in (on_gpu, on_host)]
        for key in takes[0] ^ takes[1]:
            # adam_w_mode is translated before the constructor is called, and this one is taken out
            if key in ("params", "model_params", "adam_w_mode", "adamw_mode"):
                continue
            if kind == "AdamW" and key == "fp32_optimizer_states":
                continue
            config = optimizer(kind, **{key: values.get(key, False)})
            refused = [bool(said("optimizer-argument", {**zero(2, **more), **config})) for more in ({}, CPU)]
            assert refused == [key not in takes[0], key not in takes[1]], (kind, key)
            asked += 1
    assert asked >= 8
