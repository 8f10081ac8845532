"""Rules of the optimizer: where they speak, and where not."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config.optimizers import TORCH_OPTIMIZERS
from zerokit.findings import Remove, SetValue
from zerokit.releases.versions import Version

CPU = {"offload_optimizer": {"device": "cpu"}}
TYPE = "optimizer.type"


def optimizer(kind: str, **params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": params}}


def params(key: str) -> str:
    return f"optimizer.params.{key}"


SPEAKS: list[tuple[str, Mapping[str, Any], list[tuple[str, str]]]] = [
    ("adam-is-adamw", optimizer("adam", weight_decay="auto"), [(TYPE, "info")]),
    ("adam-is-adamw", optimizer("Adam", weight_decay=0.0), []),
    ("adam-is-adamw", optimizer("Adam", weight_decay=0.1, adam_w_mode=True), []),
    ("adam-is-adamw", optimizer("AdamW", weight_decay=0.1), []),
    ("adamw-mode", optimizer("adamw", adam_w_mode=False), [(params("adam_w_mode"), "warning")]),
    ("adamw-mode", optimizer("AdamW", adam_w_mode=True), []),
    ("untested-optimizer", {**zero(1), **optimizer("Lamb")}, [(TYPE, "error")]),
    ("untested-optimizer", {**zero(3), **optimizer("MuSGD", lr=0.1)}, [(TYPE, "error")]),
    ("untested-optimizer", {**zero(2), **optimizer("MuAdam", lr=0.1)}, []),
    ("untested-optimizer", {**zero(2), **optimizer("Lion")}, []),
    ("untested-optimizer", {**zero(0), **optimizer("SGD")}, []),
    ("untested-optimizer", {**zero("auto"), **optimizer("SGD")}, []),
    ("untested-optimizer", {**zero(2), **optimizer("SGD"), "zero_allow_untested_optimiser": True}, []),
    (
        "whole-tensor-optimizer",
        {**zero(2), **optimizer("Adafactor"), "zero_allow_untested_optimizer": True},
        [(TYPE, "warning")],
    ),
    ("whole-tensor-optimizer", {**zero(0), **optimizer("Lamb")}, []),
    ("optimizer-step", {**zero(3), **optimizer("SparseAdam")}, [(TYPE, "error")]),
    ("optimizer-step", {**zero(0), **optimizer("Rprop")}, []),
    (
        "lamb-static-loss-scale",
        {**optimizer("lamb"), "fp16": {"loss_scale": 128}},
        [("fp16.loss_scale", "error")],
    ),
    ("lamb-static-loss-scale", {**optimizer("Adam"), "fp16": {"loss_scale": 128}}, []),
    ("learning-rate", optimizer("AdamW", lr=1.5), [(params("lr"), "warning")]),
    ("learning-rate", optimizer("AdamW", lr=1.0), []),
    ("learning-rate", optimizer("SGD", lr=5.0), []),
    ("learning-rate", optimizer("SGD", lr=50.0), [(params("lr"), "warning")]),
    ("learning-rate", optimizer("Muon", muon_lr=2.0, adam_lr=1e-3), [(params("muon_lr"), "warning")]),
    ("learning-rate", optimizer("AdamW", lr=0.0), [(params("lr"), "warning")]),
    (
        "learning-rate",
        {**optimizer("AdamW", lr=0.0), "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}}},
        [],
    ),
    ("learning-rate", optimizer("AdamW", lr="auto"), []),
    ("default-learning-rate", {"optimizer": {"type": "AdamW"}}, [("optimizer", "warning")]),
    ("default-learning-rate", {"optimizer": {"type": "AdamW", "param": {"lr": 1e-4}}}, []),
    ("default-learning-rate", optimizer("AdamW", learning_rate=1e-4), []),
    ("default-learning-rate", optimizer("Muon", weight_decay=0.1), [("optimizer.params", "warning")]),
    ("default-learning-rate", optimizer("Muon", adam_lr=1e-3), []),
    (
        "default-learning-rate",
        {**optimizer("AdamW"), "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}},
        [],
    ),
    (
        "default-learning-rate",
        {**optimizer("AdamW"), "scheduler": {"type": "WarmupLR", "params": {}}},
        [("optimizer.params", "warning")],
    ),
    ("betas-order", optimizer("Lion", betas=[0.99, 0.9]), [(params("betas"), "warning")]),
    ("betas-order", optimizer("Adam", betas=[0.9, 0.9]), []),
    ("betas-order", optimizer("Adam", betas="auto"), []),
    ("zero-eps", optimizer("RMSprop", eps=0.0), [(params("eps"), "warning")]),
    ("zero-eps", optimizer("Adafactor", eps=[None, 1e-3]), []),
    (
        "legacy-fusion",
        {**zero(0), "optimizer": {"type": "AdamW", "legacy_fusion": True}},
        [("optimizer.legacy_fusion", "warning")],
    ),
    (
        "legacy-fusion",
        {**zero(0), "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "legacy_fusion": True}},
        [],
    ),
    (
        "legacy-fusion",
        {**zero(0), "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "legacy_fusion": True}},
        [],
    ),
    (
        "legacy-fusion",
        {**zero(0), "fp16": {"enabled": True}, "optimizer": {"type": "Lion", "legacy_fusion": True}},
        [("optimizer.legacy_fusion", "warning")],
    ),
    ("script-optimizer", zero(1), [("", "info")]),
    ("script-optimizer", zero(3), []),
    ("script-optimizer", {**zero(1), "optimiser": {"type": "AdamW"}}, []),
    ("clipping-default", {**zero(1), "gradient_cliping": 1.0}, []),
    ("clipping-default", zero(1), [("", "info")]),
    ("clipping-default", zero(3), []),
    ("clipping-default", zero(1, compute_grad_norm=False), []),
    (
        "optimizer-argument",
        {**zero(2), **optimizer("Adam", fp32_optimizer_states=True)},
        [
            (params("fp32_optimizer_states"), "warning"),
        ],
    ),
    ("optimizer-argument", {**zero(2, **CPU), **optimizer("Adam", fp32_optimizer_states=True)}, []),
    (
        "optimizer-argument",
        {**zero(2, **CPU), **optimizer("Adagrad", lr_decay=0.1)},
        [
            (params("lr_decay"), "error"),
        ],
    ),
    (
        "optimizer-argument",
        {**zero(2), **optimizer("Lion", fp32_optimizer_states=True)},
        [
            (params("fp32_optimizer_states"), "error"),
        ],
    ),
    (
        "optimizer-argument",
        {**zero(2, offload_optimizer={"device": "auto"}), **optimizer("Lion", set_grad_none=True)},
        [],
    ),
    ("slow-host-optimizer", {**zero(2, **CPU), **optimizer("SGD")}, [(TYPE, "warning")]),
    ("slow-host-optimizer", {**zero(2, **CPU), **optimizer("Adagrad")}, []),
    ("slow-host-optimizer", {**zero(2, **CPU), **optimizer("Muon")}, []),
    ("slow-host-optimizer", {**zero(2), **optimizer("AdamW", torch_adam=True)}, []),
    ("lamb-offload", {**zero(1, cpu_offload=True), **optimizer("Lamb")}, [(TYPE, "error")]),
    ("lamb-offload", {**zero(1), **optimizer("Lamb")}, []),
    (
        "masters-optimizer",
        {
            **zero(3, **CPU),
            **optimizer("Muon"),
            "fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
        },
        [("fp16.fp16_master_weights_and_grads", "error")],
    ),
    (
        "masters-optimizer",
        {**zero(2), **optimizer("Muon"), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        [],
    ),
    (
        "muon-reduce-scatter",
        {**zero(3, reduce_scatter=True), **optimizer("Muon")},
        [
            ("zero_optimization.reduce_scatter", "error"),
        ],
    ),
    ("muon-reduce-scatter", {**zero(3, reduce_scater=False), **optimizer("Muon")}, []),
    (
        "muon-reduce-scatter",
        {**zero(3, reduce_scatter=False, zero_quantized_gradients=True), **optimizer("Muon")},
        [("zero_optimization.zero_quantized_gradients", "error")],
    ),
    ("muon-reduce-scatter", {**zero(2), **optimizer("Muon")}, []),
    ("muon-clipping", {**zero(3), **optimizer("muon")}, [("optimizer", "warning")]),
    ("muon-clipping", {**zero(3), **optimizer("Muon"), "gradient_clipping": "auto"}, []),
    ("muon-clipping", {**zero(2), **optimizer("AdamW")}, []),
    ("muon-learning-rate", optimizer("Muon", lr=0.02, muon_lr=0.01), [(params("lr"), "warning")]),
    ("muon-learning-rate", optimizer("Muon", lr=0.02, adam_lr=0.001), []),
    ("muon-buffer-unused", zero(3, save_muon_momentum_buffer_in_memory=True), []),
]


@pytest.mark.parametrize(("rule", "config", "expected"), SPEAKS)
def test_where_a_rule_speaks(rule: str, config: Mapping[str, Any], expected: list[tuple[str, str]]) -> None:
    assert said(rule, {**MICRO, **config}) == expected


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


def test_an_older_release_does_not_clip_by_default() -> None:
    config = {**zero(2), **optimizer("Muon")}
    assert said("muon-clipping", config, deepspeed_version=Version(0, 18, 0)) == []
    assert said("muon-clipping", config, deepspeed_version=Version(0, 19, 4)) == [("optimizer", "warning")]
    assert said("clipping-default", config, deepspeed_version=Version(0, 18, 0)) == []


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
