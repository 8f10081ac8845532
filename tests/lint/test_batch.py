"""Batch sizes, against what DeepSpeed computes and asserts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.lint.asking import found, said
from zerokit.findings import SetValue
from zerokit.lint.examples import recipe

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
STAGE_2 = {"zero_optimization": {"stage": 2}}


def batch(train: Any = None, micro: Any = None, steps: Any = None, **keys: Any) -> dict[str, Any]:
    """A config with those of the three that are not None."""
    sizes = {TRAIN: train, MICRO: micro, STEPS: steps}
    return {**{key: value for key, value in sizes.items() if value is not None}, **STAGE_2, **keys}


sizes = st.one_of(st.none(), st.integers(1, 12))


@pytest.mark.torch
@given(train=st.integers(1, 48), micro=sizes, steps=sizes, ranks=st.integers(1, 8))
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_deepspeed_says_the_same(
    monkeypatch: pytest.MonkeyPatch, train: int, micro: int | None, steps: int | None, ranks: int
) -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(ds_config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ds_config.dist, "get_world_size", lambda: ranks)
    config = batch(train, micro, steps)
    try:
        theirs = ds_config.DeepSpeedConfig(config)
    except AssertionError:
        assert said("batch-size", config, num_gpus=ranks, target="deepspeed") == [(TRAIN, "error")]
    else:
        assert said("batch-size", config, num_gpus=ranks, target="deepspeed") == []
        (finding,) = found("computed-micro-batch", config, num_gpus=ranks) or (None,)
        assert (finding is None) is (micro is not None)
        if finding is not None:
            assert finding.message.endswith(f": {theirs.train_micro_batch_size_per_gpu} on {ranks} GPUs")


@pytest.mark.torch
def test_accelerate_writes_1_accumulation_step() -> None:
    config = batch(64, 4)
    assert said("batch-size", config, num_gpus=8, target="deepspeed") == []
    assert said("batch-size", config, num_gpus=8, target="trainer") == [(TRAIN, "error")]
    assert said("batch-size", config, num_gpus=16, target="accelerate") == []
    # zerokit train writes "auto".
    assert said("batch-size", config, num_gpus=8, target="trainer", recipe=recipe()) == []
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    assert dataclasses.DeepSpeedPlugin(hf_ds_config=config).deepspeed_config[STEPS] == 1


@pytest.mark.parametrize(
    ("target", "severity", "fixed"),
    [
        (None, "warning", False),
        ("trainer", "error", True),
        ("accelerate", "error", True),
        ("deepspeed", "error", False),
    ],
)
def test_some_batch_size_is_needed(target: Any, severity: str, fixed: bool) -> None:
    (finding,) = found("no-batch-size", batch(steps=1), target=target)
    assert finding.severity == severity
    assert finding.fix == ((SetValue((MICRO,), "auto"),) if fixed else ())
    assert found("no-batch-size", {**batch(steps=1), "train_batchsize": 4}, target=target) == []
    assert found("no-batch-size", {**batch(), TRAIN: None}, target=target)
    assert found("no-batch-size", batch(), target=target, recipe=recipe()) == []


@pytest.mark.parametrize("target", [None, "deepspeed", "trainer", "accelerate"])
@pytest.mark.parametrize("config", [batch(8), batch(8, steps=5), {**batch(8), MICRO: None}])
def test_the_hint_leaves_a_batch_size(config: dict[str, Any], target: Any) -> None:
    (finding,) = found("batch-size", config, num_gpus=3, target=target)
    assert finding.hint is not None
    assert finding.hint.startswith(f"Give '{MICRO}' in place of '{TRAIN}', or make")
    for micro in (3, "auto"):
        (finding,) = found("batch-size", {**config, MICRO: micro}, num_gpus=3, target=target)
        assert finding.hint is not None
        assert finding.hint.startswith(f"Remove '{TRAIN}'")


def test_three_numbers_hold_for_one_number_of_gpus() -> None:
    rule = "fixed-train-batch-size"
    (finding,) = found(rule, batch(64, 4, 2))
    assert "holds for 8 GPUs" in finding.message
    (finding,) = found(rule, batch(64, 4, 2, sequence_parallel_size=2))
    assert "holds for 16 GPUs" in finding.message
    (finding,) = found(rule, batch(8, 4, 2))
    assert "holds for 1 GPU " in finding.message
    assert found(rule, batch(64, 4, 2), num_gpus=8) == []
    assert found(rule, batch(10, 4, 2)) == []  # that is an error of its own
    assert found(rule, batch(64, 4)) == found(rule, batch(64, 4, "auto")) == []
    (finding,) = found(rule, batch(64, 4), target="trainer")  # accelerate writes 1 step
    assert "holds for 16 GPUs" in finding.message
    assert found(rule, batch(64, 4), target="deepspeed") == []
    assert found(rule, batch(64, 4), target="trainer", recipe=recipe()) == []


@pytest.mark.torch
def test_a_batch_that_is_divided_as_floating_point_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(ds_config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ds_config.dist, "get_world_size", lambda: 4)
    rule, shared = "fractional-batch-size", {"sequence_parallel_size": 2}
    for sizes, computed in (
        ((16, None, 1), "train_micro_batch_size_per_gpu"),
        ((16, None, None), "train_micro_batch_size_per_gpu"),
        ((16, 2, None), "gradient_accumulation_steps"),
    ):
        config = batch(*sizes, **shared)
        assert isinstance(getattr(ds_config.DeepSpeedConfig(config), computed), float)
        (finding,) = found(rule, config)
        assert f"'{computed}'" in finding.message
        assert finding.severity == "warning"
    config = batch(None, 2, 1, **shared)
    theirs = ds_config.DeepSpeedConfig(config)
    assert isinstance(theirs.train_micro_batch_size_per_gpu, int)
    assert isinstance(theirs.gradient_accumulation_steps, int)
    assert found(rule, config) == []
    assert found(rule, batch(16, data_parallel_size=2, **shared)) == []
    assert found(rule, batch(16, 4, 1)) == []
    for sizes, key in (((None, 4.0, 1), MICRO), ((16.0, None, 1), TRAIN), ((None, 4, 2.0), STEPS)):
        written = batch(*sizes)
        assert isinstance(getattr(ds_config.DeepSpeedConfig(written), key), float)
        (finding,) = found(rule, written)
        assert (finding.path, finding.fix) == ((key,), (SetValue((key,), int(written[key])),))
