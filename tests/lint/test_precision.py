"""Number formats: which are on, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config import DeepSpeedConfig, load_ds_config
from zerokit.findings import SetValue
from zerokit.lint.examples import llama_8b, recipe
from zerokit.lint.number_formats import FORMATS, precision, switch
from zerokit.lint.subject import Subject
from zerokit.resolving.run import Run

BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True}}
CPU = {"device": "cpu"}


def subject(config: dict[str, Any], **run: Any) -> Subject:
    return Subject(config=load_ds_config(config), written=config, run=Run.of(**run))


@pytest.mark.parametrize(
    ("config", "run", "expected"),
    [
        (BF16, {}, "bf16"),
        (FP16, {}, "fp16"),
        ({"bfloat16": {"enabled": True}}, {}, "bf16"),
        ({**BF16, **FP16}, {}, None),
        ({"bf16": {"enabled": False}, "fp16": {"enabled": False}}, {}, "fp32"),
        ({"bf16": {}, "fp16": {}}, {}, "fp32"),
        ({}, {}, None),
        ({}, {"target": "deepspeed"}, "fp32"),
        ({"bf16": {"enabled": "auto"}}, {"target": "deepspeed"}, None),
        ({"bf16": {"enabled": "auto"}}, {"target": "trainer"}, None),
        ({"bf16": {"enabled": "auto"}}, {"recipe": recipe(training={"bf16": True})}, "bf16"),
        ({"bf16": None, "fp16": {"enabled": True}}, {}, "fp16"),
    ],
)
def test_what_a_config_trains_in(config: dict[str, Any], run: dict[str, Any], expected: str | None) -> None:
    assert precision(subject({**MICRO, **config}, **run)) == expected


def test_a_switch_that_may_be_misspelled_is_open() -> None:
    plain = DeepSpeedConfig.model_validate({"bf16": {}})
    misread = frozenset({("bf16", "enable")})
    assert switch(Subject(config=plain, written={"bf16": {}}), "bf16") is False
    assert (
        switch(
            Subject(config=plain, written={"bf16": {}}, doubtful=frozenset({("bf16",)}), misread=misread),
            "bf16",
        )
        is None
    )


@pytest.mark.torch
def test_the_names_of_formats_are_deepspeeds() -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    torch = pytest.importorskip("torch")
    formats = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
    theirs = {name for name in ds_config.DtypeEnum._value2member_map_ if isinstance(name, str)}
    assert set(FORMATS) == theirs
    for name, meant in FORMATS.items():
        assert ds_config.DtypeEnum(name).value == formats[meant]


def test_one_16_bit_format_at_a_time() -> None:
    assert said("bf16-and-fp16", {**zero(2), **BF16, **FP16}) == [("fp16.enabled", "error")]
    assert said("bf16-and-fp16", {**zero(2), "bfloat16": {"enabled": True}, **FP16})
    assert said("bf16-and-fp16", {**zero(2), "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}) == []


def test_a_section_without_its_switch() -> None:
    rule = "precision-off"
    assert said(rule, {**zero(2), "fp16": {"loss_scale": 0}}) == [("fp16", "warning")]
    assert said(rule, {**zero(2), "torch_autocast": {"dtype": "bf16"}}) == [("torch_autocast", "warning")]
    assert said(rule, {**zero(2), "fp16": {"loss_scale": 0}, **BF16}) == []
    assert said(rule, {**zero(2), "fp16": {"loss_scale": 0, "enable": True}}) == []  # misspelled
    assert said(rule, {**zero(2), "bf16": {}}) == []
    (finding,) = found(rule, {**zero(2), "bf16": {}}, target="trainer")
    assert finding.fix == (SetValue(("bf16", "enabled"), "auto"),)


@pytest.mark.torch
def test_accelerate_leaves_a_section_without_its_switch_off() -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    on, off = zero(2), {**zero(2), "bf16": {}}
    for config, expected in ((on, {"enabled": True}), (off, {})):
        plugin = dataclasses.DeepSpeedPlugin(hf_ds_config=config)
        plugin.set_mixed_precision("bf16")
        assert plugin.deepspeed_config["bf16"] == expected


def test_fp32_by_silence_is_said_where_nobody_adds_a_precision() -> None:
    assert said("fp32-training", zero(2), target="deepspeed") == [("", "info")]
    assert said("fp32-training", zero(2), target="trainer") == said("fp32-training", zero(2)) == []
    assert said("fp32-training", {**zero(2), "bf16": {"enabled": False}}, target="deepspeed") == []
    assert said("fp32-training", {**zero(2), "bf_16": {"enabled": True}}, target="deepspeed") == []


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        ({**zero(0), "bf16": {"bf16_master_weights_and_grads": True}}, ["bf16_master_weights_and_grads"]),
        ({**zero(0), "fp16": {"fp16_master_weights_and_grads": True}}, ["fp16_master_weights_and_grads"]),
        ({**zero(1), "bf16": {"bf16_optimizer_states": True}}, ["bf16_optimizer_states"]),
        (
            {
                **zero(1, offload_optimizer=CPU),
                "bf16": {"bf16_master_weights_and_grads": True},
                "fp16": {"fp16_master_weights_and_grads": True},
            },
            ["fp16_master_weights_and_grads"],
        ),
        ({**zero(1), "bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}, []),
        ({**zero("auto"), "bf16": {"bf16_master_weights_and_grads": True}}, []),
    ],
)
def test_master_weights_that_are_refused(config: dict[str, Any], paths: list[str]) -> None:
    assert [path.split(".")[1] for path, _ in said("precision-option", config)] == paths


@pytest.mark.torch
def test_deepspeed_refuses_two_kinds_of_master_weights() -> None:
    base_optimizer = pytest.importorskip("deepspeed.runtime.base_optimizer")
    with pytest.raises(AssertionError, match="mutually exclusive"):
        base_optimizer.ZeROOptimizer._configure_master_weights(
            base_optimizer.ZeROOptimizer.__new__(base_optimizer.ZeROOptimizer), True, True
        )


def test_master_weights_need_the_optimizer_on_the_cpu() -> None:
    rule = "masters-without-offload"
    masters = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
    states = {"bf16": {**masters["bf16"], "bf16_optimizer_states": True}}
    path = "bf16.bf16_master_weights_and_grads"
    assert said(rule, {**zero(2), **masters}) == [(path, "error")]
    assert said(rule, {**zero(2, offload_optimizer=CPU), **masters}) == []
    assert said(rule, {**zero(2, cpu_offload=True), **masters}) == []
    assert said(rule, {**zero(2, offload_optimizer={"device": "auto"}), **masters}) == []
    assert said(rule, {**zero(2, offload_optimzer=CPU), **masters}) == []  # misspelled
    assert said(rule, {**zero(2), **states}) == []
    half = {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}
    assert said(rule, {**zero(3), **half}) == [("fp16.fp16_master_weights_and_grads", "error")]


def test_a_model_of_bf16_in_fp16() -> None:
    rule = "fp16-on-bf16-model"
    assert said(rule, {**zero(2), **FP16}, model=llama_8b()) == [("fp16.enabled", "warning")]
    assert said(rule, {**zero(2), **BF16}, model=llama_8b()) == []
    auto = {**zero(2), "fp16": {"enabled": "auto"}}
    assert said(rule, auto, model=llama_8b()) == []
    assert said(rule, auto, model=llama_8b(), recipe=recipe(training={"fp16": True}))


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("T4", True), ("V100-32GB", True), ("a10", False), ("h100", False), ("mi250x", False)],
)
def test_bf16_on_a_card_without_it(gpu: str, expected: bool) -> None:
    rule = "bf16-on-older-card"
    found = [("bf16.enabled", "warning")] if expected else []
    assert said(rule, {**zero(2), **BF16}, gpu=gpu) == found
    assert said(rule, {**zero(2), **FP16}, gpu=gpu) == []
    assert said(rule, {**zero(2), "bf16": {"enabled": "auto"}}, gpu=gpu) == []
    recipe_in_bf16 = recipe(training={"bf16": True})
    assert said(rule, {**zero(2), "bf16": {"enabled": "auto"}}, gpu=gpu, recipe=recipe_in_bf16) == found


@pytest.mark.parametrize(
    ("stage", "model", "dtype", "expected"),
    [
        (0, BF16, "fp32", "error"),
        (0, FP16, "bf16", "error"),
        (0, BF16, "bfloat16", None),
        (1, BF16, "fp32", None),
        (2, BF16, "half", "warning"),
        (2, FP16, "bf16", None),
        (3, {"bf16": {"enabled": False}, "fp16": {"enabled": False}}, "bf16", "warning"),
        (0, {}, "fp32", None),
        ("auto", BF16, "fp16", None),
    ],
)
def test_formats_of_sums(stage: Any, model: dict[str, Any], dtype: str, expected: str | None) -> None:
    config = {**zero(stage), **model, "data_types": {"grad_accum_dtype": dtype}}
    severities = [severity for _, severity in said("accumulation-dtype", config)]
    assert severities == ([expected] if expected else [])


def test_integers_train_nothing() -> None:
    for section, key in (
        ("data_types", "grad_accum_dtype"),
        ("data_types", "param_dtype"),
        ("data_types", "buffer_dtype"),
        ("torch_autocast", "dtype"),
    ):
        config = {**zero(2), **BF16, section: {key: "int8"}}
        assert said("integer-dtype", config) == [(f"{section}.{key}", "error")]
    assert said("integer-dtype", {**zero(2), **BF16, "data_types": {"grad_accum_dtype": "fp32"}}) == []


def test_the_format_of_parameters_is_that_of_the_switch() -> None:
    rule = "param-dtype"
    assert said(rule, {**zero(2), **BF16, "data_types": {"param_dtype": "fp32"}})
    assert said(rule, {**zero(2), **BF16, "data_types": {"param_dtype": "bfloat16"}}) == []
    assert said(rule, {**zero(2), "data_types": {"param_dtype": "bf16"}}) == []
    assert said(rule, {**zero(2), "data_types": {"param_dtype": "bf16"}}, target="deepspeed")


def test_what_gradients_are_sent_in() -> None:
    rule, fp16 = "communication-dtype", {"communication_data_type": "fp16"}
    assert said(rule, {**zero(2), **BF16, **fp16}) == [("communication_data_type", "warning")]
    assert said(rule, {**zero(2), **FP16, **fp16}) == []
    assert said(rule, {**zero(2), **fp16}) == []
    assert said(rule, {**zero(2), **BF16, "communication_data_type": "bf16"}) == []
    shared = {"sequence_parallel_size": 2, "data_parallel_size": 2}
    (finding,) = found(rule, {**zero(2), **BF16, "communication_data_type": "fp32", **shared})
    assert "seq_parallel_communication_data_type" in finding.message
    autocast = {"torch_autocast": {"enabled": True, "dtype": "bf16"}}
    assert said(rule, {**zero(2), **autocast, "communication_data_type": "fp32"})
    assert said(rule, {**zero(0), **autocast, "communication_data_type": "fp32"}) == []


def test_where_the_check_of_gradients_is_asked_for() -> None:
    rule, path = "overflow-check", "bf16.check_grad_overflow"
    off = {"bf16": {"enabled": True, "check_grad_overflow": False}}
    for stage, severity in ((0, "warning"), (1, "info"), (2, "info"), (3, "warning")):
        assert said(rule, {**zero(stage), **off}) == [(path, severity)]
    wrapped = {**zero(1), **off, "data_types": {"grad_accum_dtype": "fp32"}}
    assert said(rule, wrapped) == [(path, "warning")]
    assert said(rule, {**zero("auto"), **off}) == []
    assert said(rule, {**zero(3), "bf16": {"enabled": True, "check_grad_overflow": True}}) == []


def test_many_gradients_in_bf16() -> None:
    rule = "bf16-accumulation"
    many = {**zero(2), **BF16, "gradient_accumulation_steps": 16}
    assert said(rule, many) == [("gradient_accumulation_steps", "info")]
    assert said(rule, {**many, "gradient_accumulation_steps": 8}) == []
    assert said(rule, {**many, "data_types": {"grad_accum_dtype": "fp32"}}) == []
    assert said(rule, {**many, **zero(2, offload_optimizer=CPU)}) == []
