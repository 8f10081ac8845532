from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.findings import Remove


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (zero(3, compute_grad_norm=False), "zero_optimization.compute_grad_norm"),
        (zero(0, compute_grad_norm=False), "zero_optimization.compute_grad_norm"),
        (
            zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
            "zero_optimization.offload_optimizer.ratio",
        ),
        ({**zero(3), "gradient_allreduce_op": "sum"}, "gradient_allreduce_op"),
        (
            {**zero(2), "gradient_allreduce_op": "SUM", "compile": {"deepcompile": True}},
            "gradient_allreduce_op",
        ),
        (
            {**zero(2, zenflow={}, offload_optimizer={"device": "cpu"}), "gradient_allreduce_op": "sum"},
            "gradient_allreduce_op",
        ),
    ],
)
def test_options_that_need_another_stage(config: dict[str, Any], path: str) -> None:
    assert said("zero-option", config) == [(path, "error")]


@pytest.mark.parametrize(
    "config",
    [
        zero(2, compute_grad_norm=False),
        zero("auto", compute_grad_norm=False, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        {**zero(2), "gradient_allreduce_op": "sum"},
        {**zero(3), "gradient_allreduce_op": "mean"},
    ],
)
def test_options_in_a_stage_that_has_them(config: dict[str, Any]) -> None:
    assert said("zero-option", config) == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "'gradient_clipping' 1, its default, needs the norm"),
        ({"gradient_clipping": 0.5}, "'gradient_clipping' 0.5 needs the norm"),
        ({"gradient_clipping": "auto"}, None),
        ({"gradient_clipping": 0}, None),
        ({"gradient_cliping": 0}, None),
    ],
)
def test_what_needs_the_norm(more: dict[str, Any], reason: str | None) -> None:
    messages = [
        finding.message for finding in found("grad-norm-off", {**zero(2, compute_grad_norm=False), **more})
    ]
    assert messages == ([f"'compute_grad_norm' cannot be false: {reason}"] if reason else [])


@pytest.mark.parametrize(
    ("stage", "more", "expected"),
    [
        (0, {}, []),
        (1, {}, [("prescale_gradients", "warning")]),
        (2, {}, [("prescale_gradients", "error")]),
        (3, {}, [("prescale_gradients", "error")]),
        (2, {"gradient_allreduce_op": "sum"}, [("prescale_gradients", "warning")]),
        ("auto", {}, []),
    ],
)
def test_prescaled_gradients(stage: Any, more: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert said("prescaled-gradients", {**zero(stage), "prescale_gradients": True, **more}) == expected
    without = {**zero(stage, reduce_scatter=False), "prescale_gradients": True, **more}
    assert said("prescaled-gradients", without) == []


def test_a_predivide_factor_of_1_divides_nothing() -> None:
    assert said("prescaled-gradients", {**zero(2), "gradient_predivide_factor": 1.0}) == []
    assert said("prescaled-gradients", {**zero(2), "gradient_predivide_factor": 8}) == [
        ("gradient_predivide_factor", "error")
    ]


@pytest.mark.parametrize(
    ("stage", "overlap", "count"), [(0, True, 1), (1, True, 1), (2, True, 0), (3, None, 0), (1, None, 0)]
)
def test_accumulation_by_the_script_and_overlap(stage: int, overlap: Any, count: int) -> None:
    keys = {} if overlap is None else {"overlap_comm": overlap}
    config = {**zero(stage, **keys), "managed_gradient_accumulation": False}
    assert len(found("accumulation-overlap", config)) == count
    assert found("accumulation-overlap", zero(stage, **keys)) == []


@pytest.mark.parametrize(("stage", "severity"), [(0, "warning"), (1, "error"), (3, "error")])
def test_the_first_implementation_of_stage_1(stage: int, severity: str) -> None:
    (finding,) = found("legacy-stage1", zero(stage, legacy_stage1=True))
    assert finding.severity == severity
    assert finding.fix == (Remove(("zero_optimization", "legacy_stage1")),)
    assert found("legacy-stage1", zero(stage, legacy_stage1=False)) == []


@pytest.mark.parametrize(("stage", "count"), [(1, 1), (2, 1), (3, 0)])
def test_odd_buckets_and_loading_in_turn(stage: int, count: int) -> None:
    assert len(found("odd-allgather-bucket", zero(stage, allgather_bucket_size=5))) == count
    assert found("odd-allgather-bucket", zero(stage, allgather_bucket_size=6)) == []
    assert len(found("pipeline-loading-stage", zero(stage, pipeline_loading_checkpoint=True))) == count
