"""The folder of a plan is written as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.errors import ZerokitError
from zerokit.planning.folder import check_folder, write_folder

FILES = {"launch.sh": "#!/bin/bash\n", "plan.json": "{}\n"}


def test_writes_all_files_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    with pytest.raises(ZerokitError):
        write_folder(folder, {**FILES, "x" * 300: ""}, force=False)
    assert list(tmp_path.iterdir()) == []
    write_folder(folder, FILES, force=False)
    assert {file.name: file.read_text() for file in folder.iterdir()} == FILES
    assert (folder / "launch.sh").stat().st_mode & 0o111


def test_keeps_an_existing_folder_if_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("mine")
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(ZerokitError, match="is a folder"):
        write_folder(tmp_path, FILES, force=True)
    assert (tmp_path / "launch.sh").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "problem"), [("file", "is no folder"), ("none/plan", "no folder for it"), (".", "has files")]
)
def test_refuses_before_any_work(tmp_path: Path, path: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ZerokitError, match=problem):
        check_folder(tmp_path / path, force=False)
