from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.runs import run, shape
from zerokit.memory import Estimate, estimate
from zerokit.memory.host import aligned
from zerokit.memory.pinned_memory import power_of_two


@given(st.integers(1, 2**60))
def test_pinned_blocks_are_the_least_power_of_two(number: int) -> None:
    rounded = power_of_two(number)
    assert rounded & (rounded - 1) == 0
    assert rounded // 2 < number <= rounded


@given(st.integers(1, 10**12), st.sampled_from([2, 4]))
def test_files_are_multiples_of_1024_bytes(elements: int, size: int) -> None:
    assert 0 <= 1024 * aligned(elements, size) - elements * size < 1024


def offloaded(stage: int, **more: Any) -> Estimate:
    zero = {"offload_optimizer": {"device": "cpu", "pin_memory": more.pop("pin", True)}}
    return estimate(run(stage, zero={**zero, **more.pop("zero", {})}, **more))


def test_nothing_stays_on_the_host_without_offload() -> None:
    for stage in range(4):
        assert estimate(run(stage)).host.steady_bytes == 0


def test_stage_2_keeps_18_bytes_of_each_parameter_of_the_partition() -> None:
    # 4 master, 2 on the way back, 4 gradient, 8 moments; and a buffer for the largest gradient.
    part, largest = shape().num_parameters // 4, 32000 * 512
    host = offloaded(2, pin=False).host
    assert host.pinned_bytes == 0
    assert abs(host.steady_bytes - (18 * part + 2 * largest)) < 1000


def test_stage_3_keeps_18_bytes_of_each_parameter_too() -> None:
    host = offloaded(3, pin=False).host
    assert abs(host.steady_bytes - 18 * shape().num_parameters // 4) < 10_000


@pytest.mark.parametrize("ratio", [0.0, 0.4, 0.75])
def test_sub_groups_that_are_not_offloaded_are_on_the_gpu(ratio: float) -> None:
    """`int((1 - ratio) * n)` of n sub-groups: 4 master, 4 gradient and 8 moments of each parameter."""
    size = 200_000
    all_on_host, some = (
        estimate(
            run(
                3,
                zero={
                    "sub_group_size": size,
                    "offload_optimizer": {"device": "cpu", "ratio": one, "pin_memory": False},
                },
            )
        )
        for one in (1.0, ratio)
    )
    moved = some.device.steady_bytes - all_on_host.device.steady_bytes
    all_of_it = 16 * shape().num_parameters / 4
    assert moved == pytest.approx(all_of_it, rel=0.001) if ratio == 0 else 0 < moved < all_of_it
    assert all_on_host.host.steady_bytes - some.host.steady_bytes == pytest.approx(moved, rel=0.001)
    states = some.model_states.optimizer_states
    assert states.gpu_bytes == pytest.approx(12 / 16 * moved, rel=0.001)
    assert "on the GPU" in states.place or ratio == 0


def test_a_single_sub_group_is_offloaded_whole() -> None:
    zero = {"offload_optimizer": {"device": "cpu", "ratio": 0.75}}
    states = estimate(run(3, zero=zero)).model_states.optimizer_states
    assert (states.gpu_bytes, states.place) == (0, "host")


def test_pinning_rounds_each_buffer_to_a_power_of_two() -> None:
    part = 2 * -(-shape().num_parameters // 8)
    pinned = power_of_two(4 * part) * 2 + power_of_two(2 * part) + power_of_two(2 * 32000 * 512)
    assert offloaded(2).host.pinned_bytes == pinned


def test_accumulation_keeps_gradients_of_stage_2_on_the_host() -> None:
    once, often = (offloaded(2, pin=False, gradient_accumulation_steps=steps).host for steps in (1, 4))
    assert often.steady_bytes - once.steady_bytes >= 2 * shape().num_parameters // 4


def test_nvme_holds_16_bytes_and_little_stays_on_the_host() -> None:
    nvme = {"device": "nvme", "nvme_path": "/tmp", "buffer_count": 4}
    big = shape(hidden_size=2048, intermediate_size=8192, num_attention_heads=16)
    estimated = estimate(run(3, model=big, zero={"offload_optimizer": nvme}))
    part = big.num_parameters / 4
    assert 0.98 < estimated.nvme.per_rank_bytes / (16 * part) < 1.01
    assert estimated.nvme.per_node_bytes == 4 * estimated.nvme.per_rank_bytes
    buffers = next(term for term in estimated.terms if term.name == "buffers for optimizer states on NVMe")
    assert abs(buffers.bytes - 4 * 4 * part) < 100_000
    assert buffers.device == "pinned"


def test_a_full_copy_is_built_below_stage_3_only() -> None:
    copies = [
        [term for term in estimate(run(stage)).terms if term.name == "the model as it is built or loaded"]
        for stage in range(4)
    ]
    assert [len(found) for found in copies] == [1, 1, 1, 0]
    assert copies[0][0].bytes == 2 * shape().num_parameters
    forced = estimate(run(3, loads_full_copy_per_rank=True))
    assert forced.host.per_node_bytes >= 4 * 2 * shape().num_parameters
