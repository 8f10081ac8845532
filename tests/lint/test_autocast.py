"""PyTorch's mixed precision inside DeepSpeed. What it does to a step is in test_precision_steps.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import said, zero


def autocast(stage: Any = 1, **keys: Any) -> dict[str, Any]:
    return {**zero(stage), "torch_autocast": {"enabled": True, **keys}}


@pytest.mark.torch
def test_the_format_has_no_default() -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    assert ds_config.DeepSpeedConfig(autocast()).torch_autocast_dtype is None
    assert said("autocast-dtype", autocast()) == [("torch_autocast", "warning")]
    assert said("autocast-dtype", autocast(dtype="bfloat16")) == []
    assert said("autocast-dtype", autocast(dtpye="bfloat16")) == []  # misspelled
    assert said("autocast-dtype", {**zero(1), "torch_autocast": {"enabled": False}}) == []


@pytest.mark.parametrize(
    ("stage", "section", "dtype", "expected"),
    [
        (1, "bf16", "bf16", "warning"),
        (1, "fp16", "bf16", "warning"),
        (0, "bf16", "float16", "error"),
        (0, "fp16", "half", "error"),
        (0, "bf16", "bf16", "warning"),
        (3, "fp16", "fp16", "error"),
        (2, "bf16", "fp16", "warning"),
        ("auto", "fp16", "fp16", "warning"),
    ],
)
def test_autocast_on_16_bit_weights(stage: Any, section: str, dtype: str, expected: str) -> None:
    config = {**autocast(stage, dtype=dtype), section: {"enabled": True}}
    assert said("autocast-and-precision", config) == [("torch_autocast.enabled", expected)]
    assert said("autocast-and-precision", {**config, section: {"enabled": False}}) == []
    assert said("autocast-and-precision", {**config, section: {"enabled": "auto"}}) == []


def test_clipping_under_autocast() -> None:
    rule = "autocast-clipping"
    for stage in (1, 2, 3):
        assert said(rule, autocast(stage, dtype="float16")) == [("torch_autocast.dtype", "error")]
    assert said(rule, autocast(0, dtype="float16")) == []
    assert said(rule, autocast(2, dtype="bfloat16")) == []
    assert said(rule, {**autocast(2, dtype="float16"), "gradient_clipping": 0}) == []
    assert said(rule, {**autocast(2, dtype="float16"), "gradient_clipping": "auto"}) == []
    assert said(rule, {**autocast(2, dtype="float16"), "gradient_cliping": 0}) == []  # misspelled


def test_other_autocasts_that_do_not_work() -> None:
    assert said("autocast-quantized-weights", autocast(3, dtype="bf16")) == []
    quantized = {"torch_autocast": {"enabled": True, "dtype": "bf16"}, **zero(3, zero_quantized_weights=True)}
    path = "zero_optimization.zero_quantized_weights"
    assert said("autocast-quantized-weights", quantized) == [(path, "error")]
    assert said("autocast-in-fp32", autocast(dtype="float32")) == [("torch_autocast.dtype", "warning")]
    assert said("autocast-in-fp32", autocast(dtype="bf16")) == []
