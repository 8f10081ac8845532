from typing import Any

import pytest

from tests.lint.asking import found, said, zero

CPU = {"device": "cpu"}


def compiled(stage: Any, *, zero_keys: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {**zero(stage, **(zero_keys or {})), "compile": keys}


@pytest.mark.parametrize(("stage", "count"), [(1, 1), (2, 1), (3, 0)])
def test_offload_by_the_compiler_is_for_stage_3(stage: int, count: int) -> None:
    config = compiled(stage, deepcompile=True, offload_opt_states=True, symmetric_memory=False)
    assert said("compile-stage3-key", config) == [("compile.offload_opt_states", "warning")] * count


@pytest.mark.parametrize(("free", "count"), [(True, 0), (False, 1)])
def test_a_threshold_needs_its_switch(free: bool, count: int) -> None:
    config = compiled(3, deepcompile=True, free_activation=free, free_activation_threshold=10)
    assert len(found("compile-activation-threshold", config)) == count
