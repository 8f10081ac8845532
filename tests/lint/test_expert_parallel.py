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
