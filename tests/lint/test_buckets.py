from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.lint.examples import llama_8b, recipe, small_decoder
from zerokit.units import GIB

BF16 = {"bf16": {"enabled": True}}
REDUCE = "zero_optimization.reduce_bucket_size"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (5e8, [(REDUCE, "warning")]),
        (None, [("zero_optimization", "info")]),
        (1e8, []),
        ("auto", []),
    ],
)
def test_a_bucket_beyond_the_model(size: Any, expected: list[tuple[str, str]]) -> None:
    keys = {} if size is None else {"reduce_bucket_size": size}
    for stage in (1, 2, 3):
        config = {**zero(stage, **keys), **BF16}
        assert said("bucket-exceeds-model", config, model=small_decoder()) == expected
        assert said("bucket-exceeds-model", config, model=llama_8b()) == []
    assert said("bucket-exceeds-model", zero(0, **keys), model=small_decoder()) == []


def test_a_waste_of_memory_says_how_much() -> None:
    config = {**zero(2, overlap_comm=True), **BF16}
    (finding,) = found("bucket-exceeds-model", config, model=small_decoder())
    assert finding.severity == "warning"
    assert "1.36 GiB are never used" in finding.message  # 2 x 2 bytes x (5e8 - 134,105,856)
    assert found("bucket-exceeds-model", config, model=small_decoder(), recipe=recipe(peft={"r": 8})) == []
    unused = zero(2, contiguous_gradients=False)
    assert found("bucket-exceeds-model", unused, model=small_decoder()) == []


@pytest.mark.parametrize(
    ("keys", "more", "gib", "shown"),
    [
        ({"stage": 2}, BF16, 16, "takes 953.67 MiB of the GPU, 6% of it"),
        ({"stage": 2}, BF16, 24, None),
        (
            {"stage": 2, "overlap_comm": True},
            BF16,
            24,
            "8% of it; 'overlap_comm' doubles it",
        ),
        ({"stage": 3, "overlap_comm": True}, BF16, 24, None),
        ({"stage": 2}, {"bf16": {"enabled": False}}, 24, "takes 1.86 GiB of the GPU, 8%"),
        ({"stage": 2, "contiguous_gradients": False}, BF16, 8, None),
        ({"stage": 2, "reduce_bucket_size": 5e7, "overlap_comm": True}, BF16, 8, None),
        ({"stage": 0}, BF16, 8, None),
    ],
)
def test_buckets_against_the_card(
    keys: dict[str, Any], more: dict[str, Any], gib: int, shown: str | None
) -> None:
    findings = found("bucket-memory", {**zero(**keys), **more}, gpu_memory_bytes=gib * GIB)
    assert len(findings) == (shown is not None)
    assert all(str(shown) in finding.message for finding in findings)


@pytest.mark.parametrize(("size", "count"), [(1, 1), (99_999, 1), (1e5, 0), ("auto", 0)])
def test_a_bucket_of_next_to_nothing(size: Any, count: int) -> None:
    assert len(found("tiny-bucket", zero(2, reduce_bucket_size=size))) == count
    assert found("tiny-bucket", zero(0, reduce_bucket_size=size)) == []


@pytest.mark.parametrize(
    ("target", "count"), [("trainer", 1), ("accelerate", 1), (None, 1), ("deepspeed", 0)]
)
def test_a_bucket_made_from_a_small_hidden_size(target: Any, count: int) -> None:
    config = zero(2, reduce_bucket_size="auto")
    assert len(found("small-auto-bucket", config, target=target, model=small_decoder())) == count
    assert found("small-auto-bucket", config, target=target, model=llama_8b()) == []
    assert found("small-auto-bucket", zero(2), target=target, model=small_decoder()) == []


@pytest.mark.parametrize(
    ("stage", "size", "severity"),
    [(2, 2e8, "info"), (1, 0, "warning"), (2, 5, None), (3, 2e8, None), (0, 2e8, None)],
)
def test_a_bucket_that_nothing_uses(stage: int, size: float, severity: str | None) -> None:
    severities = [level for _, level in said("allgather-bucket", zero(stage, allgather_bucket_size=size))]
    assert severities == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({"stage3_prefetch_bucket_size": 1e9, "stage3_max_live_parameters": 1e8}, 1),
        ({"stage3_max_live_parameters": 1e7}, 1),
        ({"stage3_prefetch_bucket_size": 1e9}, 0),
        ({"stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 1e7}, 0),
        ({"prefetch_bucket_size": 2e9}, 1),
    ],
)
def test_prefetching_more_than_may_be_live(keys: dict[str, Any], count: int) -> None:
    assert len(found("prefetch-exceeds-live", zero(3, **keys))) == count
    assert found("prefetch-exceeds-live", zero(2, **keys)) == []


def test_limits_that_limit_nothing() -> None:
    config = zero(3, stage3_max_live_parameters=1e18, stage3_max_reuse_distance=1e9)
    assert said("live-unbounded", config) == [("zero_optimization.stage3_max_live_parameters", "info")]
    assert said("live-unbounded", zero(2, stage3_max_live_parameters=1e18)) == []


@pytest.mark.parametrize(("live", "gib", "count"), [(1e9, 24, 0), (1e9, 6, 1), (1e18, 80, 0), (1e18, 48, 1)])
def test_gathered_parameters_against_the_card(live: float, gib: int, count: int) -> None:
    config = {**zero(3, stage3_max_live_parameters=live), **BF16}
    run = {"model": llama_8b(), "gpu_memory_bytes": gib * GIB}
    assert len(found("live-parameters-memory", config, **run)) == count
