from typing import Any

import pytest

from tests.lint.asking import found, said, zero

CPU = {"device": "cpu"}


def compiled(stage: Any, *, zero_keys: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {**zero(stage, **(zero_keys or {})), "compile": keys}


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"offload_activation": True}, "compile.offload_activation"),
        ({"deepcompile": False, "passes": ["z3"]}, "compile.passes"),
        ({"deepcompile": True, "offload_activation": True}, None),
        ({"autoep_non_moe": True}, None),
        ({}, None),
    ],
)
def test_options_of_a_compiler_that_is_off(keys: dict[str, Any], path: str | None) -> None:
    expected = [] if path is None else [(path, "warning")]
    assert said("compile-off", compiled(3, **keys)) == expected


@pytest.mark.parametrize(
    ("stage", "keys", "more", "path"),
    [
        (0, {}, {}, "compile.deepcompile"),
        (1, {}, {}, None),
        (3, {}, {}, None),
        ("auto", {}, {}, None),
        (1, {"passes": ["autosp"]}, {}, None),
        (0, {"passes": ["autosp"]}, {}, None),
        (2, {"passes": ["autosp"]}, {}, "compile.passes"),
        (1, {"passes": ["autotp"]}, {}, "compile.passes"),
        (1, {"passes": ["autotp"]}, {"tensor_parallel": {"autotp_size": 2}}, None),
    ],
)
def test_stages_of_deepcompile(
    stage: Any, keys: dict[str, Any], more: dict[str, Any], path: str | None
) -> None:
    config = {**compiled(stage, deepcompile=True, **keys), **more}
    assert said("compile-stage", config) == ([] if path is None else [(path, "warning")])


@pytest.mark.parametrize(("stage", "count"), [(1, 1), (2, 1), (3, 0)])
def test_offload_by_the_compiler_is_for_stage_3(stage: int, count: int) -> None:
    config = compiled(stage, deepcompile=True, offload_opt_states=True, symmetric_memory=False)
    assert said("compile-stage3-key", config) == [("compile.offload_opt_states", "warning")] * count


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        (compiled(3, deepcompile=True, offload_activation=True), []),
        (
            compiled(3, deepcompile=True, offload_activation=True, offload_parameters=True),
            ["compile.offload_activation"],
        ),
        (
            compiled(3, deepcompile=True, offload_parameters=True, offload_opt_states=True),
            ["compile.offload_opt_states"],
        ),
        (
            compiled(3, deepcompile=True, offload_opt_states=True, zero_keys={"offload_optimizer": CPU}),
            ["compile.offload_opt_states"],
        ),
        (
            compiled(
                3,
                deepcompile=True,
                offload_activation=True,
                zero_keys={"offload_optimizer": CPU, "offload_param": CPU},
            ),
            ["compile.offload_activation"],
        ),
        (compiled(2, deepcompile=True, offload_activation=True, offload_opt_states=True), []),
        (compiled(1, deepcompile=True, passes=["autotp", "z1"]), ["compile.passes"]),
        (compiled(1, deepcompile=True, passes=["autotp"]), []),
        (compiled(1, autoep_non_moe=True), []),
        (compiled(1, autoep_non_moe=True, deepcompile=True), ["compile.autoep_non_moe"]),
        (compiled(3, autoep_non_moe=True, zero_keys={"offload_param": CPU}), ["compile.autoep_non_moe"] * 2),
    ],
)
def test_options_that_exclude_each_other(config: dict[str, Any], paths: list[str]) -> None:
    assert said("compile-combination", config) == [(path, "error") for path in paths]


@pytest.mark.parametrize(("free", "count"), [(True, 0), (False, 1)])
def test_a_threshold_needs_its_switch(free: bool, count: int) -> None:
    config = compiled(3, deepcompile=True, free_activation=free, free_activation_threshold=10)
    assert len(found("compile-activation-threshold", config)) == count
