"""Tasks of fine-tuning on two real ranks: cells of the table of ``python -m tests.training.task_table``."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.training.task_table import STAGES, TRIALS, cell, write


@pytest.mark.parametrize(("task", "lora"), [("sequence_classification", True), ("dpo", True)])
def test_a_task_is_learned_and_reloads_in_plain_libraries(task: str, lora: bool, tmp_path: Path) -> None:
    write(TRIALS[task], task, tmp_path)
    row = cell(task, tmp_path, tmp_path / "out", "3", STAGES["3"], lora=lora)
    assert row["passes"], row
    if task == "dpo":  # at the first step the model is its reference, but for dropout, which must be off
        logs = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
        assert next(log["loss"] for log in logs if log["step"] == 1) == pytest.approx(math.log(2), abs=1e-6)
