"""Comparisons of speed on a GPU: their arithmetic everywhere, and a sample of how on a processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.validation.gpu import step_times
from tests.validation.gpu.packed_speed import Size, run
from tests.validation.gpu.step_times import CONFIGURATIONS, row_of, summary

pytestmark = pytest.mark.torch


def test_errors_of_both_predictions_are_of_what_was_measured() -> None:
    ways = {
        "catalogue": {"seconds": 0.9, "low": 0.7, "high": 1.2},
        "calibration": {"seconds": 1.05, "low": 1.01, "high": 1.3},
    }
    rows = [row_of(CONFIGURATIONS[0], {"measured": 1.0, **ways}), row_of(CONFIGURATIONS[1], ways)]
    assert (rows[0]["error_by_catalogue"], rows[0]["error_by_calibration"]) == (-0.1, 0.05)
    found = summary(rows)
    assert found["catalogue"] == {**{"compared": 1, "median_error": 0.1, "worst_error": 0.1}, "within_the_range": 1}
    assert found["calibration"]["within_the_range"] == 0


def test_one_half_keeps_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two machines, with what a GPU and a rehearsal would say given."""
    asked: list[list[str]] = []

    def predicted(_: Any, hardware: list[str], __: Path) -> dict[str, float]:
        asked.append(hardware[:1])
        return {"seconds": 1.0, "low": 0.5, "high": 2.0}

    monkeypatch.setattr(step_times, "predicted", predicted)
    file = tmp_path / "gpu_time.json"
    recorded = {"calibration": {"gpu": "H100"}, "rows": [{"name": "zero3", "measured": 1.25}]}
    file.write_text(json.dumps(recorded))
    step_times.main(["--rehearse-only", "--only", "zero3", "--output", str(file)])
    document = json.loads(file.read_text())
    assert document["calibration"] == {"gpu": "H100"}
    assert document["summary"]["calibration"]["worst_error"] == 0.2
    names = [one.name for one in CONFIGURATIONS if "zero3" in one.name]
    assert [row["name"] for row in document["rows"]] == names
    assert asked == [["--gpu"], ["--hardware"]] * len(names)


@pytest.mark.distributed
def test_both_ways_train_the_same_model() -> None:
    shape = {
        **{"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1},
    }
    found = run(Size(batch=2, seq_len=128, warm=1, steps=3, shape=("Qwen2ForCausalLM", shape)), rounds=1)
    for way in ("zerokit", "joined"):
        (one,) = found[way]
        assert one["device"] == "cpu"
        assert 0 < one["tokens_per_second"] * one["step_seconds"] <= 2 * 128
    assert found["joined"][0]["tokens_per_second"] * found["joined"][0]["step_seconds"] == pytest.approx(256)
