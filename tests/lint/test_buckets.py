from typing import Any

import pytest

from tests.lint.asking import found, zero
from tests.rows import rows
from zerokit.lint.examples import recipe, small_decoder
from zerokit.units import GIB

ROWS = rows(__file__)

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
    ROWS["buckets_against_the_card"],
)
def test_buckets_against_the_card(
    keys: dict[str, Any], more: dict[str, Any], gib: int, shown: str | None
) -> None:
    findings = found("bucket-memory", {**zero(**keys), **more}, gpu_memory_bytes=gib * GIB)
    assert len(findings) == (shown is not None)
    assert all(str(shown) in finding.message for finding in findings)
