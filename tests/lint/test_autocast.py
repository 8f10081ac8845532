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
