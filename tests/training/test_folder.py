"""Which checkpoints of a run stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.training.folder import checkpoints, remove_old


@pytest.mark.parametrize(
    ("limit", "last", "best", "left"),
    [
        (None, 30, None, [2, 10, 20, 30]),
        (2, 30, None, [20, 30]),
        (2, 30, "out/checkpoint-2", [2, 30]),
        (1, 30, "out/checkpoint-2", [2, 30]),
        (3, 10, None, [2, 10, 20]),  # a run that went on from 2: what it left behind goes first
        (1, 10, None, [10]),
    ],
)
def test_the_last_whole_checkpoint_and_the_best_stay(
    limit: int | None, last: int, best: str | None, left: list[int], tmp_path: Path
) -> None:
    for number in (2, 10, 20, 30):
        (tmp_path / f"checkpoint-{number}").mkdir()
    remove_old(tmp_path, limit, last=tmp_path / f"checkpoint-{last}", best=best)
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{number}" for number in left]
