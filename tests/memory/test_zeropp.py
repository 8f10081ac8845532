"""ZeRO++: the secondary shards of hpZ, and quantized weights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.runs import run
from tests.validation.memory.against_rehearsal import compare
from tests.validation.memory.rehearsed import Point
from zerokit.memory import estimate

SMALL: dict[str, Any] = {"model": "Qwen/Qwen2.5-0.5B", "changes": {"num_hidden_layers": 2}, "seq_len": 512}
TWO_NODES: dict[str, Any] = {"num_gpus": 8, "gpus_per_node": 4}
HPZ = {"stage": 3, "zero_hpz_partition_size": 4}
ON_HOST = {"offload_param": {"device": "cpu"}}


@pytest.mark.torch
@pytest.mark.rehearsal
@pytest.mark.parametrize(
    "point",
    [
        Point("quantized", zero=HPZ | {"zero_quantized_weights": True}, accumulation=2, **SMALL, **TWO_NODES),
        Point("on the host", zero=HPZ | ON_HOST, checkpointing=True, **SMALL, **TWO_NODES),
    ],
    ids=lambda point: point.name,
)
def test_the_estimate_agrees_with_the_rehearsal(point: Point) -> None:
    row = compare(point, forked=True)
    assert abs(row.device_peak.error) < 0.005
    assert abs(row.device_steady.error) < 0.002
    assert abs(row.host_peak.error) < 0.005


@given(st.sampled_from([2, 4, 8]), st.sampled_from([8, 16]), st.booleans())
def test_secondary_shards_come_with_a_release_and_go_with_the_step(
    ranks: int, world: int, checkpointing: bool
) -> None:
    few = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    plain, near = (
        estimate(
            run(
                3, world_size=world, gradient_checkpointing=checkpointing, zero=few | {"zero_hpz_partition_size": size}
            )
        )
        for size in (1, ranks)
    )
    # The whole model is released before the step. All sizes divide by the number of GPUs.
    assert near.device.by_phase["step"] - plain.device.by_phase["step"] == 2 * plain.num_parameters // ranks
    assert near.device.steady_bytes == plain.device.steady_bytes
    assert not any("hpz" in warning for warning in near.warnings)
