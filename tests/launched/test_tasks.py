"""Tasks of fine-tuning on two real ranks: cells of the table of ``python -m tests.training.task_table``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.task_table import STAGES, TRIALS, cell, write


@pytest.mark.parametrize(("task", "lora"), [("sequence_classification", True), ("dpo", True)])
def test_a_task_is_learned_and_reloads_in_plain_libraries(task: str, lora: bool, tmp_path: Path) -> None:
    write(TRIALS[task], task, tmp_path)
    row = cell(task, tmp_path, tmp_path / "out", "3", STAGES["3"], lora=lora)
    assert row["passes"], row
