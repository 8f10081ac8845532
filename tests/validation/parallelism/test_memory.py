"""The record of `memory`, and two of its points rehearsed anew."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.validation.parallelism.memory import RECORD, ParallelPoint, compare, drawn, rehearsed, summary

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
SMALL = {"vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 2}
SAMPLE = (
    ParallelPoint(
        "sequence",
        "llama-3.2-1b",
        {"stage": 3},
        sequence=4,
        num_gpus=4,
        seq_len=2048,
        micro_batch_size=2,
        changes={**SMALL, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 32},
    ),
    ParallelPoint(
        "tied tensors", "llama-3.2-1b", {"stage": 1}, tensor=2, num_gpus=2, checkpointing=True, changes=SMALL
    ),
)


@pytest.mark.torch
@pytest.mark.rehearsal
@pytest.mark.parametrize("point", SAMPLE, ids=lambda point: point.name)
def test_the_estimate_agrees_with_the_rehearsal(point: ParallelPoint) -> None:
    ranks = rehearsed(point, forked=True)
    row = compare(point, ranks)
    assert abs(row["error"]) < 0.02
    for rank, one in ranks.items():
        assert abs(row["estimated"][rank]["steady_bytes"] / one["steady_bytes"] - 1) < 0.01


def test_the_record_holds_what_is_promised() -> None:
    points = list(drawn(40))
    assert {point.sequence for point in points} == {point.tensor for point in points} == {1, 2, 4, 8}
    assert [row["point"] for row in RECORDED["rows"]] == json.loads(json.dumps([asdict(point) for point in points]))
    assert RECORDED["summary"] == pytest.approx(summary(RECORDED["rows"]))
    assert RECORDED["summary"]["median"] <= 0.02
    assert RECORDED["summary"]["lowest"] >= -0.08
    assert RECORDED["summary"]["highest"] <= 0.08


@pytest.mark.slow
def test_the_record_is_of_today_s_estimates() -> None:
    for point, row in zip(drawn(40), RECORDED["rows"], strict=True):
        assert json.loads(json.dumps(compare(point, row["rehearsed"]))) == row
