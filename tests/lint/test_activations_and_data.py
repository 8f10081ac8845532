from types import SimpleNamespace
from typing import Any

import pytest

from tests.lint.asking import found, said, zero

CONTIGUOUS = "activation_checkpointing.contiguous_memory_optimization"
METRICS = {
    "seqlen": {
        "difficulty_type": "value",
        "clustering_type": "single_cluster",
        "min_difficulty": 8,
        "max_difficulty": 64,
        "schedule_type": "custom",
    }
}


def data(outer: Any, sampling: Any, inner: bool) -> dict[str, Any]:
    curriculum = {"enabled": inner, "curriculum_metrics": METRICS}
    section: dict[str, Any] = {"data_sampling": {"curriculum_learning": curriculum}}
    if sampling is not None:
        section["data_sampling"]["enabled"] = sampling
    if outer is not None:
        section["enabled"] = outer
    return {**zero(2), "data_efficiency": section}


@pytest.mark.parametrize(
    ("section", "missing"),
    [
        ({}, "needs \"partition_activations\": true and 'number_checkpoints'"),
        ({"partition_activations": True}, "needs 'number_checkpoints'"),
        ({"partition_activations": True, "number_checkpoints": None}, "needs 'number_checkpoints'"),
        ({"number_checkpoints": 4}, 'needs "partition_activations": true'),
        ({"partition_activations": True, "number_checkpoints": 4}, None),
    ],
)
def test_contiguous_checkpoints(section: dict[str, Any], missing: str | None) -> None:
    config = {**zero(2), "activation_checkpointing": {"contiguous_memory_optimization": True, **section}}
    findings = found("contiguous-checkpoints", config)
    assert [finding.message for finding in findings] == (
        [] if missing is None else [f"'contiguous_memory_optimization' {missing}"]
    )
    off = {**zero(2), "activation_checkpointing": {"contiguous_memory_optimization": False, **section}}
    assert found("contiguous-checkpoints", off) == []


@pytest.mark.parametrize(
    ("target", "count"), [("trainer", 1), ("accelerate", 1), ("deepspeed", 0), (None, 0)]
)
def test_transformers_models_do_not_look_at_the_section(target: Any, count: int) -> None:
    section = {"_why": True, "partition_activations": False, "cpu_checkpointing": True}
    config = {**zero(2), "activation_checkpointing": section}
    path = "activation_checkpointing.cpu_checkpointing"
    assert said("activation-checkpointing", config, target=target) == [(path, "warning")] * count
    off = {**zero(2), "activation_checkpointing": {"partition_activations": False}}
    assert said("activation-checkpointing", off, target=target) == []


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (data(False, True, True), "data_efficiency.enabled"),
        (data(True, False, True), "data_efficiency.data_sampling.enabled"),
        (data(True, True, True), None),
        (data(None, None, True), None),
        (data(False, False, False), None),
    ],
)
def test_switches_that_switch_nothing(config: dict[str, Any], path: str | None) -> None:
    assert said("data-efficiency-switch", config) == ([] if path is None else [(path, "error")])


@pytest.mark.torch
def test_deepspeed_follows_the_inner_switch() -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    from deepspeed.runtime.engine import DeepSpeedEngine

    for outer in (False, True):
        read = SimpleNamespace(_config=ds_config.DeepSpeedConfig(data(outer, outer, True)))
        assert DeepSpeedEngine.curriculum_learning_enabled(read) is True


@pytest.mark.parametrize(
    ("target", "count"), [("trainer", 1), ("accelerate", 1), ("deepspeed", 0), (None, 0)]
)
def test_sampling_needs_deepspeeds_own_loader(target: Any, count: int) -> None:
    assert len(found("data-efficiency-unused", data(True, True, True), target=target)) == count
    assert found("data-efficiency-unused", data(True, True, False), target=target) == []
