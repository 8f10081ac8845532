"""What a rehearsed script saves: its own data, as far as it can tell; weights not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse
from zerokit.rehearsal.watching.suppressed_writes import SuppressedWrites, not_written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves")


@pytest.fixture(scope="module")
def rehearsed(folder: Path) -> Rehearsed:
    (folder / "weights.safetensors").write_text("a person's own")
    words = ("--num-gpus", 2, "--rank", 0, "--steps", 0, "--format", "json", SCRIPTS / "saves.py")
    return rehearse(*words, cwd=folder)


def test_data_is_written_and_read_again(rehearsed: Rehearsed, folder: Path) -> None:
    assert rehearsed.code == 0, rehearsed.err
    rows = torch.stack([torch.arange(start, start + 512) for start in range(64)])
    assert f"sum {int(rows.sum())}" in rehearsed.err
    assert "in memory True" in rehearsed.err
    files = rehearsed.report["files"]
    saved = "data.pt data.safetensors host_weights.pt ids.pt opened.pt progress.pt weights.pt"
    assert files["first_written"] == [str(folder / name) for name in saved.split()]
    assert files["written_bytes"] > 3 * rows.nbytes
    assert [path.name for path in folder.iterdir()] == ["weights.safetensors"]


def test_weights_are_written_without_values_and_the_report_says_so(rehearsed: Rehearsed, folder: Path) -> None:
    names = ("host_weights.pt", "weights.pt", "opened.pt")
    suppressed = rehearsed.report["suppressed"]
    for name in names:
        assert f"torch.save to {name}" in suppressed
    assert {"safetensors to weights.safetensors", "safetensors to model.safetensors"} <= set(suppressed)
    assert {"DeepSpeed checkpoints", "weights merged from DeepSpeed checkpoints"} <= set(suppressed)
    assert "merges Unable to find 'latest' file at earlier" in rehearsed.err
    assert (folder / "weights.safetensors").read_text() == "a person's own"
    assert not any("data" in line or "progress" in line for line in suppressed)


def test_weights_are_read_again_without_values(rehearsed: Rehearsed) -> None:
    (line,) = (line for line in rehearsed.err.splitlines() if line.startswith("read "))
    shapes = ("(512,)", "(512, 512)")
    for shape in shapes:
        assert f"('cuda:0', 'torch.bfloat16', {shape})" in line
    assert line.startswith("read 2 ")


def test_a_script_that_ends_by_itself_has_no_stop_in_its_report(rehearsed: Rehearsed) -> None:
    report = rehearsed.report
    assert (report["steps"], report["run"]["stopped_after_steps"]) == (2, None)


def test_a_repository_that_is_not_made_has_its_name() -> None:
    saver: Any = SimpleNamespace(owner="huggingface_hub.hf_api", name="create_repo")
    create = SuppressedWrites(mock.Mock(), mock.Mock())._instead_of({"what": "uploads"}, saver)
    assert create("someone/model", token="hf", exist_ok=True).repo_id == "someone/model"
    data = create(object(), token="hf", repo_id="data", repo_type="dataset")
    assert (data.repo_id, data.repo_type) == ("you/data", "dataset")
    with pytest.raises(TypeError, match="repo_id"):
        create(repo_id=None)


@pytest.mark.parametrize("has_barrier", [True, False])
def test_a_row_decides_whether_its_savers_wait_for_all_ranks(has_barrier: bool) -> None:
    saver: Any = SimpleNamespace(name="save_checkpoint")
    writes = SuppressedWrites(mock.Mock(), mock.Mock())
    save = writes._instead_of({"what": "checkpoints", "barrier": has_barrier}, saver)
    with mock.patch("torch.distributed.is_initialized"), mock.patch("torch.distributed.barrier") as barrier:
        save("folder")
    assert barrier.called == has_barrier


def test_a_left_out_file_is_known_where_its_folder_was_renamed(tmp_path: Path) -> None:
    saved, gone = tmp_path / "saved", tmp_path / "step0-tmp"
    saved.mkdir()
    left_out = [str(saved / "a.pt"), str(gone / "b.pt")]
    for error in (
        FileNotFoundError(f"file {tmp_path}/step0/b.pt not found"),
        FileNotFoundError(2, "No such file", f"{tmp_path}/step0/b.pt"),
    ):
        assert not_written(error, left_out) == str(gone / "b.pt")
    for other in ("other/a.pt", "step0/b.pth", "step0/bb.pt"):  # the script's own
        assert not_written(FileNotFoundError(f"file {tmp_path}/{other} not found"), left_out) is None


def test_ranks_read_what_one_of_them_has_left_out(tmp_path: Path) -> None:
    torch.save({"older": torch.arange(3)}, tmp_path / "older.pt")
    words = ("--num-gpus", 2, "--no-advise", "--steps", 0, "--format", "json")
    done = rehearse(*words, SCRIPTS / "saves_for_others.py", cwd=tmp_path, forked=True)
    assert done.code == 0, done.err
    assert "read by 0" in done.err
    assert done.report["device"]["peak_bytes"] > 0


def test_a_class_of_tensors_is_read_again(tmp_path: Path) -> None:
    words = ("--num-gpus", 1, "--no-advise", "--steps", 0, SCRIPTS / "saves_a_subclass.py")
    done = rehearse(*words, cwd=tmp_path, forked=True)
    assert done.code in (0, 1), done.err
    assert "read Rows cuda:0 (4096, 4096)" in done.out + done.err
