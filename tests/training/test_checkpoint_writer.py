"""What a checkpoint that cannot be written leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_callback import TrainerState

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.staging import make_staging
from zerokit.training.checkpoint_writer import CheckpointWriter


class OneOfTwo(RankGroup):
    """A rank of two, whose other rank does the same."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, value]

    def broadcast_object(self, value: Any) -> Any:
        return value


def writer(folder: Path, *, is_main: bool = True) -> CheckpointWriter:
    group = OneOfTwo(Ranks(rank=int(not is_main), world_size=2, local_rank=int(not is_main)))
    return CheckpointWriter(group, folder, limit=1, is_writer=is_main)


@pytest.mark.parametrize("is_main", [True, False])
def test_the_best_checkpoint_is_one_that_was_saved(
    is_main: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoints = writer(tmp_path, is_main=is_main)
    state = TrainerState(best_metric=9.0, best_global_step=1, best_model_checkpoint="one")
    checkpoints.begin(state)
    failures: list[str | None] = []
    monkeypatch.setattr("zerokit.training.checkpoint_writer.publish", lambda *_: failures.pop() if failures else None)

    def save(metric: float, step: int, error: Exception | None) -> tuple[Any, ...]:
        state.global_step = step
        if metric < state.best_metric:
            state.best_metric, state.best_global_step = metric, step

        def write(folder: Path) -> None:
            assert folder == tmp_path / ".unfinished" / f"checkpoint-{step}"
            if is_main:
                folder.mkdir(parents=True)
            if error is not None:
                raise error

        checkpoints.save(state, write)
        assert not (tmp_path / ".unfinished").exists()
        return state.best_metric, state.best_global_step, Path(str(state.best_model_checkpoint)).name

    assert save(3.0, 2, OSError("full")) == (9.0, 1, "one")
    assert save(4.0, 3, None) == (4.0, 3, "checkpoint-3")  # better than the checkpoints that are left
    assert state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
    assert save(2.0, 4, OSError("full")) == (4.0, 3, "checkpoint-3")
    failures.append("the server is full")
    assert save(2.0, 4, None) == (4.0, 3, "checkpoint-3")
    with pytest.raises(KeyError):
        save(1.0, 5, KeyError())


def test_the_output_folder_itself_is_never_removed(tmp_path: Path) -> None:
    def write(folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        raise OSError("full")

    checkpoints = writer(tmp_path / "out")
    (tmp_path / "out").mkdir()
    unfinished = make_staging(tmp_path / "out" / ".unfinished")
    before = sorted(tmp_path.rglob("*"))
    for folder in (
        tmp_path / "out",
        Path(f"{tmp_path}/out/../out"),
        unfinished / "checkpoint-1",
        tmp_path / "out" / ".saving",
    ):
        checkpoints.write_weights(folder, write)
        assert sorted(tmp_path.rglob("*")) == before
    assert checkpoints.problems == ["full"] * 4


def test_weights_can_be_read_by_those_who_can_read_their_folder(tmp_path: Path) -> None:
    saved = tmp_path / "out" / ".saving" / "model.safetensors"
    writer(tmp_path).write_weights(saved.parent, lambda folder: (Path(folder) / saved.name).touch(0o600))
    assert saved.stat().st_mode & 0o777 == saved.parent.stat().st_mode & 0o666
