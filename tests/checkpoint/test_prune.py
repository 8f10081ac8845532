"""Which checkpoints of a run are removed, and which never."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.checkpoint.small import save_checkpoint
from tests.cli import conftest
from zerokit.checkpoint.prune import plan_pruning, remove
from zerokit.checkpoint.step_folder import find_step_folder
from zerokit.checkpoint.unfinished import UNFINISHED
from zerokit.errors import CheckpointError
from zerokit.staging import MARK
from zerokit.units import format_bytes

zerokit = conftest.zerokit


def run_of(folder: Path, *names: str) -> Path:
    for step, name in enumerate(names):
        save_checkpoint(folder / name / f"global_step{step}")
    if (folder / UNFINISHED).is_dir():
        (folder / UNFINISHED / MARK).touch()
    return folder


def removed(run: Path, keep: int = 1) -> list[str]:
    return [folder.name for folder in plan_pruning(run, keep).removed]


def test_epochs_and_steps_have_no_order(tmp_path: Path) -> None:
    run = run_of(tmp_path, "epoch_0", "epoch_1", "step_500", "step_1000")
    for look in (find_step_folder, removed):
        with pytest.raises(CheckpointError, match="of two kinds, such as epoch_0 and step_500"):
            look(run)
    shutil.rmtree(run / "epoch_0")
    shutil.rmtree(run / "epoch_1")
    assert removed(run) == ["step_500"]


@pytest.mark.parametrize("of_run", [None, "checkpoint-200"])
def test_the_best_checkpoints_stay(of_run: str | None, tmp_path: Path) -> None:
    run = run_of(tmp_path, "checkpoint-100", "checkpoint-200", "checkpoint-300")
    for step, best in ((200, "checkpoint-200"), (300, "checkpoint-100")):
        state = {"best_model_checkpoint": f"/elsewhere/run/{best}", "log_history": []}
        (run / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps(state))
    if of_run is not None:
        (run / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": of_run}))
    assert removed(run) == ([] if of_run else ["checkpoint-200"])
    (run / "checkpoint-300/trainer_state.json").write_text('{"best_model_')
    with pytest.raises(CheckpointError, match=r"300/trainer_state\.json: is damaged or far too large"):
        removed(run)


def test_a_removal_that_was_interrupted_is_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path, "checkpoint-100", "checkpoint-200", ".unfinished/checkpoint-100")
    (run / ".unfinished/notes").mkdir()
    assert [folder.relative_to(run).as_posix() for folder in plan_pruning(run, 1).removed] == [
        ".unfinished/checkpoint-100",
        "checkpoint-100",
    ]
    for folder in plan_pruning(run, 1).removed:
        remove(folder)
    assert sorted(path.name for path in run.iterdir()) == [".unfinished", "checkpoint-200"]
    assert sorted(path.name for path in (run / ".unfinished").iterdir()) == [MARK, "notes"]


def test_a_folder_of_an_earlier_version_is_in_the_way_only_if_something_is_moved(
    tmp_path: Path, zerokit: conftest.Run
) -> None:
    run = run_of(tmp_path, "checkpoint-100", "checkpoint-200", ".unfinished/checkpoint-50")
    (run / UNFINISHED / MARK).unlink()
    assert zerokit("checkpoint", "prune", run, "--keep", "2", "--yes")[0] == 0
    code, _, err = zerokit("checkpoint", "prune", run, "--keep", "1", "--yes")
    assert code == 2
    assert "remove it if you need nothing in it" in err
    assert sorted(path.name for path in run.iterdir()) == [UNFINISHED, "checkpoint-100", "checkpoint-200"]
    shutil.rmtree(run / UNFINISHED)
    assert zerokit("checkpoint", "prune", run, "--keep", "1", "--yes")[0] == 0
    assert [path.name for path in run.iterdir()] == ["checkpoint-200"]


def test_a_checkpoint_that_a_run_is_writing_is_left_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path, "checkpoint-100", "checkpoint-200", ".unfinished/checkpoint-300")
    for folder in plan_pruning(run, 1).removed:
        remove(folder)
    assert sorted(path.name for path in run.iterdir()) == [".unfinished", "checkpoint-200"]
    assert sorted(path.name for path in (run / ".unfinished").iterdir()) == [MARK, "checkpoint-300"]


def test_half_of_a_checkpoint_never_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", "checkpoint-1", "checkpoint-2")
    removed_as: list[Path] = []
    monkeypatch.setattr(shutil, "rmtree", removed_as.append)
    remove(run / "checkpoint-1")
    assert removed_as == [run / ".unfinished/checkpoint-1"]
    assert sorted(path.name for path in run.iterdir()) == [".unfinished", "checkpoint-2"]
    monkeypatch.undo()
    for folder in plan_pruning(run, 1).removed:
        remove(folder)
    assert [path.name for path in run.iterdir()] == ["checkpoint-2"]


def test_latest_is_never_read_whole(tmp_path: Path) -> None:
    run = run_of(tmp_path, "global_step1", "global_step2")
    (run / "latest").write_text("global_step1\n")
    assert removed(run) == []
    with (run / "latest").open("wb") as latest:
        latest.truncate(1 << 40)  # which no memory takes
    assert removed(run) == ["global_step1"]
    with pytest.raises(CheckpointError, match="latest: is damaged: it does not name a checkpoint"):
        find_step_folder(run)


@pytest.mark.parametrize("look", [find_step_folder, removed])
def test_a_name_that_no_file_system_takes_is_no_folder(look: object, tmp_path: Path) -> None:
    assert callable(look)
    with pytest.raises(CheckpointError, match="no such folder"):
        look(tmp_path / ("a" * 300))


def test_a_dry_run_removes_nothing(tmp_path: Path, zerokit: conftest.Run) -> None:
    run = run_of(tmp_path, "checkpoint-1", "checkpoint-2")
    code, out, err = zerokit("checkpoint", "prune", run, "--keep", "1", "--dry_run")
    assert (code, err) == (0, "")
    size = sum(file.stat().st_size for file in (run / "checkpoint-1").rglob("*") if file.is_file())
    assert out == (
        f"would be kept: {run}/checkpoint-2\nwould be removed: {run}/checkpoint-1 ({format_bytes(size)})\n"
        f"would free {format_bytes(size)}\n"
    )
    _, out, _ = zerokit("checkpoint", "prune", run, "--keep", "1", "--dry-run", "--format", "json")
    assert json.loads(out)["dry_run"] is True
    assert len(list(run.iterdir())) == 2


def test_several_runs_are_pruned_and_one_without_checkpoints_is_named(tmp_path: Path, zerokit: conftest.Run) -> None:
    for name in ("a", "b"):
        run_of(tmp_path / name / "run", "checkpoint-1", "checkpoint-2")
    (tmp_path / "b/run/checkpoint-3").mkdir()
    (tmp_path / "none").mkdir()
    runs = (tmp_path / "a/run", tmp_path / "none", tmp_path / "b/run")
    code, out, err = zerokit("checkpoint", "prune", *runs, "--keep", "1", "--yes")
    assert code == 2
    assert err.startswith(f"zerokit: error: {tmp_path}/none: has no complete checkpoint, so none is removed")
    assert "\nnot a complete DeepSpeed checkpoint, left alone: " in out
    freed = re.findall(r"removed: \S+ \((.*)\)", out)
    assert len(freed) == 2
    assert out.splitlines()[-1].startswith("freed ")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/run/*")) == [
        *("a/run/checkpoint-2", "b/run/checkpoint-2", "b/run/checkpoint-3")
    ]
