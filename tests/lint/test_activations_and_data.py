from types import SimpleNamespace
from typing import Any

import pytest

from tests.lint.asking import found, zero

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


@pytest.mark.torch
def test_deepspeed_follows_the_inner_switch() -> None:
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    from deepspeed.runtime.engine import DeepSpeedEngine

    for outer in (False, True):
        read = SimpleNamespace(_config=ds_config.DeepSpeedConfig(data(outer, outer, True)))
        assert DeepSpeedEngine.curriculum_learning_enabled(read) is True
