from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.lint.examples import llama_8b


@pytest.mark.parametrize(
    ("keys", "num_gpus", "path"),
    [
        ({"sequence_parallel_size": 3}, 8, "sequence_parallel_size"),
        ({"sequence_parallel_size": 4}, 8, None),
        ({"sequence_parallel_size": 4, "data_parallel_size": 2}, 8, None),
        ({"sequence_parallel_size": 4, "data_parallel_size": 4}, 8, "data_parallel_size"),
        ({"data_parallel_size": 4}, 8, None),
        ({}, 8, None),
    ],
)
def test_sequence_parallel_ranks_divide_the_gpus(
    keys: dict[str, int], num_gpus: int, path: str | None
) -> None:
    expected = [] if path is None else [(path, "error")]
    assert said("sequence-parallel-size", {**zero(1), **keys}, num_gpus=num_gpus) == expected


def test_data_parallel_ranks_alone_say_nothing() -> None:
    assert said("data-parallel-size", {**zero(1), "data_parallel_size": 4}) == [
        ("data_parallel_size", "warning")
    ]
    both = {**zero(1), "data_parallel_size": 4, "sequence_parallel_size": 2}
    assert said("data-parallel-size", both) == []


@pytest.mark.parametrize(
    ("size", "num_gpus", "count"), [(2, 1, 1), (3, 8, 1), (8, 8, 0), (1, 7, 0), (0, 7, 0)]
)
def test_tensor_parallel_ranks_divide_the_gpus(size: int, num_gpus: int, count: int) -> None:
    config = {**zero(1), "tensor_parallel": {"autotp_size": size}}
    assert (
        said("tensor-parallel-size", config, num_gpus=num_gpus)
        == [("tensor_parallel.autotp_size", "error")] * count
    )


@pytest.mark.parametrize(
    ("section", "severity"),
    [
        ({"autotp_size": 4, "tp": {"tp_size": 2}}, "error"),
        ({"tp": {"tp_size": 2}}, "warning"),
        ({"autotp_size": 4, "tp": {"tp_size": 4}}, None),
        ({"autotp_size": 4, "tp": {"tp_size": 1}}, None),
        ({"autotp_size": 4, "tensor_parallel": {"tp_size": 2}}, "error"),
    ],
)
def test_two_sizes_of_tensor_parallelism(section: dict[str, Any], severity: str | None) -> None:
    severities = [
        level for _, level in said("tensor-parallel-sizes", {**zero(1), "tensor_parallel": section})
    ]
    assert severities == ([] if severity is None else [severity])


@pytest.mark.parametrize(("size", "count"), [(8, 0), (16, 1), (0, 0)])
def test_ranks_beyond_the_heads_wait(size: int, count: int) -> None:
    config = {**zero(1), "tensor_parallel": {"autotp_size": size}}
    assert len(found("tensor-parallel-heads", config, model=llama_8b())) == count


@pytest.mark.parametrize(
    ("stage", "target", "count"),
    [(1, None, 0), (2, None, 1), (3, "deepspeed", 1), (1, "trainer", 1), (0, None, 0)],
)
def test_pipelines_go_with_stages_0_and_1(stage: int, target: Any, count: int) -> None:
    config = {**zero(stage), "pipeline": {"activation_checkpoint_interval": 1}}
    assert len(found("pipeline-section", config, target=target)) == count
    assert found("pipeline-section", {**zero(stage), "pipeline": {}}, target=target) == []


@pytest.mark.parametrize(("enabled", "size", "count"), [(True, 3, 1), (True, 4, 0), (False, 3, 0)])
def test_ranks_of_the_hybrid_engine(enabled: bool, size: int, count: int) -> None:
    config = {**zero(3), "hybrid_engine": {"enabled": enabled, "inference_tp_size": size}}
    assert len(found("hybrid-engine-size", config, num_gpus=8)) == count


@pytest.mark.parametrize(
    ("section", "count"), [({"max_out_tokens": 9}, 1), ({"enabled": False, "max_out_tokens": 9}, 1), ({}, 0)]
)
def test_the_hybrid_engine_has_to_be_switched_on(section: dict[str, Any], count: int) -> None:
    assert len(found("hybrid-engine-off", {**zero(3), "hybrid_engine": section})) == count
