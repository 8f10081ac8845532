"""Today's rehearsal against what was measured on a real GPU: tests/validation/results/gpu.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.combinations import ALL
from tests.validation.gpu.compare_with_gpu import (
    CONFIGURATIONS,
    WRITTEN,
    Configuration,
    device_of,
    errors_percent,
    read,
    rehearse,
    shortfalls,
    summary,
)

SUBSET = (
    *("qwen-0.5b-zero0", "llama-1b-zero1-checkpointing", "llama-1b-zero3", "gpt2-large-zero2-fp16-eager"),
    *("llama-1b-zero2-padding", "qwen-1.5b-zero2-offload", "llama-7b-zero0-lora", "qwen-0.5b-zero2-fp32-eager"),
)
"""Those that are rehearsed without ZEROKIT_ALL_COMBINATIONS=1."""
LIMIT_SECONDS = 300

pytestmark = [
    pytest.mark.rehearsal,
    pytest.mark.skipif(not WRITTEN.exists(), reason="run tests.validation.gpu.compare_with_gpu first"),
]


def _chosen(rows: dict[str, dict[str, object]]) -> list[Configuration]:
    return [
        one
        for one in CONFIGURATIONS
        if (ALL or one.name in SUBSET) and one.name in rows and rows[one.name]["measured"]
    ]


def test_todays_rehearsal_is_as_good_as_it_has_to_be(tmp_path: Path) -> None:
    document = read(WRITTEN)
    device = device_of(document)
    assert device is not None, "the file has no measured half"
    rows = {row["name"]: row for row in document["configurations"]}
    chosen = _chosen(rows)
    assert len(chosen) >= len(SUBSET) - 1, "too few of the configurations have been measured"
    errors = []
    for one in chosen:
        row = rows[one.name]
        today = rehearse(one, row["arguments"], tmp_path, device, LIMIT_SECONDS)
        errors.append({"name": one.name, "errors_percent": errors_percent(row["measured"], today)})
    found = summary(errors)
    assert found["compared"] == len(chosen)
    assert not shortfalls(found), "\n".join([*shortfalls(found), *map(str, errors)])


def test_the_whole_record_is_good_enough() -> None:
    document = read(WRITTEN)
    assert document["summary"] == summary(document["configurations"])
    assert document["summary"]["compared"] >= 16
    assert not shortfalls(document["summary"])
    assert document["gpu"]["name"]
    assert document["measured_with"]["versions"]["torch"]
