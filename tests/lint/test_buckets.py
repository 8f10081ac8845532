from typing import Any

import pytest

from tests.lint.asking import found, zero
from zerokit.lint.examples import recipe, small_decoder
from zerokit.units import GIB

BF16 = {"bf16": {"enabled": True}}


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
        ({"stage": 2, "overlap_comm": True}, BF16, 24, "8% of it; 'overlap_comm' doubles it"),
        ({"stage": 3, "overlap_comm": True}, BF16, 24, None),
        ({"stage": 2}, {"bf16": {"enabled": False}}, 24, "takes 1.86 GiB of the GPU, 8%"),
        ({"stage": 2, "contiguous_gradients": False}, BF16, 8, None),
        ({"stage": 2, "reduce_bucket_size": 5e7, "overlap_comm": True}, BF16, 8, None),
        ({"stage": 0}, BF16, 8, None),
    ],
)
def test_buckets_against_the_card(keys: dict[str, Any], more: dict[str, Any], gib: int, shown: str | None) -> None:
    findings = found("bucket-memory", {**zero(**keys), **more}, gpu_memory_bytes=gib * GIB)
    assert len(findings) == (shown is not None)
    assert all(str(shown) in finding.message for finding in findings)
