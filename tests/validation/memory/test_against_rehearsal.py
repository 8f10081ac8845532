"""A few fast points of the grid; `tests.validation.memory.against_rehearsal` compares all of them."""

from __future__ import annotations

import json

import pytest

from tests.combinations import sample
from tests.validation.memory.against_rehearsal import RECORD, compare, compare_recorded
from tests.validation.memory.against_rehearsal import summary as summarised
from tests.validation.memory.grid import points

pytestmark = [pytest.mark.torch, pytest.mark.rehearsal]

FAST = [
    "llama-1b stage 0",
    "qwen2-1.5b stage 3, micro batch 4, fp16",
    "llama-1b stage 2, optimizer on the host, accumulation 4",
    "llama-1b stage 3, both on NVMe, few of them in memory",
    "llama-8b stage 0, QLoRA, one GPU, constants in fp32",
]
BY_NAME = {point.name: point for point in points()}


@pytest.mark.parametrize("name", sample(FAST, 3))
def test_the_estimate_agrees_with_the_rehearsal(name: str) -> None:
    row = compare(BY_NAME[name], forked=True)
    assert abs(row.device_peak.error) < 0.03
    assert abs(row.device_steady.error) < 0.01
    assert row.host_error < 0.03
    assert abs(row.nvme.error) < 0.03
    assert row.phase_estimated == row.phase_rehearsed


def test_the_grid_covers_what_it_should() -> None:
    grid = points()
    assert len(grid) == len(BY_NAME) >= 60
    assert {point.zero["stage"] for point in grid} == {0, 1, 2, 3}
    assert len({point.num_gpus for point in grid}) >= 3
    assert len({point.model for point in grid}) >= 10
    assert {point.accumulation for point in grid} == {1, 4}
    assert {point.checkpointing for point in grid} == {True, False}
    assert {point.precision for point in grid} == {"bf16", "fp16", "fp32"}


def test_the_recorded_grid_holds_what_is_promised() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    summary = recorded["summary"]
    assert [row["name"] for row in recorded["rows"]] == list(BY_NAME)
    assert summary["device_peak_median"] <= 0.03
    assert summary["device_peak_worst"] <= 0.08
    rows = [compare_recorded(BY_NAME[row["name"]], row) for row in recorded["rows"]]
    assert summarised(rows) == pytest.approx(summary)
    assert min(row.device_peak.error for row in rows) > -0.03
    assert summary["device_steady_worst"] <= 0.01
    assert summary["host_worst"] <= 0.03
