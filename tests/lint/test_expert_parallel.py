from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.lint.examples import llama_8b, mixture_of_experts

TP = {"tensor_parallel": {"autotp_size": 2}}


def experts(**keys: Any) -> dict[str, Any]:
    return {"expert_parallel": {"enabled": True, **keys}}


@pytest.mark.parametrize(("size", "num_gpus", "count"), [(3, 8, 1), (4, 8, 0), (16, 8, 1), (1, 7, 0)])
def test_ranks_divide_the_gpus(size: int, num_gpus: int, count: int) -> None:
    config = {**zero(1), **experts(autoep_size=size)}
    assert len(found("expert-parallel-size", config, num_gpus=num_gpus)) == count
    off = {**zero(1), "expert_parallel": {"enabled": False, "autoep_size": size}}
    assert found("expert-parallel-size", off, num_gpus=num_gpus) == []


@pytest.mark.parametrize(("size", "count"), [(8, 0), (64, 0), (128, 1), (3, 1)])
def test_ranks_divide_the_experts(size: int, count: int) -> None:
    config = {**zero(1), **experts(autoep_size=size)}
    expected = [("expert_parallel.autoep_size", "error")] * count
    assert said("expert-parallel-experts", config, model=mixture_of_experts()) == expected
    assert said("expert-parallel-experts", config, model=llama_8b()) == [("expert_parallel", "warning")]


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        ({**zero(1), **experts(autoep_size=2)}, []),
        ({**zero(1), **experts(autoep_size=2), **TP}, []),
        ({**zero(1), **experts(), **TP}, ["expert_parallel"]),
        ({**zero(1), **experts(autoep_size=1), **TP}, ["expert_parallel.autoep_size"]),
        (
            {**zero(1, offload_optimizer={"device": "none"}), **experts(autoep_size=2), **TP},
            ["zero_optimization.offload_optimizer"],
        ),
        (
            {**zero(1), **experts(autoep_size=2), **TP, "compile": {"deepcompile": True}},
            ["compile.deepcompile"],
        ),
        (
            {**zero(1), **experts(autoep_size=2), **TP, "use_data_before_expert_parallelism": True},
            ["use_data_before_expert_parallelism"],
        ),
        (
            {**zero(1), **experts(autoep_size=2, async_split_plan=True), **TP},
            ["expert_parallel.async_split_plan"],
        ),
        (
            {**zero(1), **experts(autoep_size=2, combine_impl="fused_weighted_sum"), **TP},
            ["expert_parallel.combine_impl"],
        ),
        (
            {
                **zero(1),
                **experts(autoep_size=2, preset_model="mixtral"),
                "tensor_parallel": {"autotp_size": 2, "preset_model": "llama"},
            },
            ["expert_parallel.preset_model"],
        ),
        (
            {**zero(3, zero_quantized_gradients=True, zero_hpz_partition_size=8), **experts(autoep_size=2)},
            ["zero_optimization.zero_hpz_partition_size", "zero_optimization.zero_quantized_gradients"],
        ),
    ],
)
def test_what_expert_parallelism_does_not_go_with(config: dict[str, Any], paths: list[str]) -> None:
    assert sorted(said("expert-parallel-combination", config)) == [(path, "error") for path in paths]


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"comm_backend": "deepep"}, "comm_backend"),
        ({"row_weighting_impl": "fused", "autoep_size": 2}, "row_weighting_impl"),
        ({"gate_up_impl": "fused", "use_grouped_mm": False}, "gate_up_impl"),
        ({"num_expert_groups": 2, "num_limited_groups": 3}, "num_limited_groups"),
        (
            {
                "comm_backend": "deepep",
                "comm_max_tokens_per_rank": 9,
                "autoep_size": 2,
                "combine_impl": "fused_weighted_sum",
            },
            "combine_impl",
        ),
        (
            {
                "comm_backend": "deepep",
                "comm_max_tokens_per_rank": 9,
                "autoep_size": 2,
                "row_weighting_impl": "fused",
            },
            None,
        ),
    ],
)
def test_options_that_need_each_other(keys: dict[str, Any], name: str | None) -> None:
    expected = [] if name is None else [(f"expert_parallel.{name}", "error")]
    assert said("expert-parallel-backend", {**zero(1), **experts(**keys)}) == expected
