"""Number formats: which are on, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config import DeepSpeedConfig, load_ds_config
from zerokit.config.dtypes import DTYPES
from zerokit.findings import SetValue
from zerokit.lint.examples import recipe
from zerokit.lint.number_formats import precision, switch
from zerokit.lint.subject import Subject
from zerokit.resolving.run import Run

BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16: dict[str, Any] = {"fp16": {"enabled": True}}


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
        switch(Subject(config=plain, written={"bf16": {}}, doubtful=frozenset({("bf16",)}), misread=misread), "bf16")
        is None
    )


@pytest.mark.torch
def test_the_names_of_formats_are_deepspeeds() -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    torch = pytest.importorskip("torch")
    formats = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
    theirs = {name for name in ds_config.DtypeEnum._value2member_map_ if isinstance(name, str)}
    assert set(DTYPES) == theirs
    for name, meant in DTYPES.items():
        assert ds_config.DtypeEnum(name).value == formats[meant]


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


@pytest.mark.torch
def test_deepspeed_refuses_two_kinds_of_master_weights() -> None:
    base_optimizer = pytest.importorskip("deepspeed.runtime.base_optimizer")
    with pytest.raises(AssertionError, match="mutually exclusive"):
        base_optimizer.ZeROOptimizer._configure_master_weights(
            base_optimizer.ZeROOptimizer.__new__(base_optimizer.ZeROOptimizer), True, True
        )


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
