"""Where an exported checkpoint is written, and when it appears there."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.checkpoint.output_folder import check_output, output_folder
from zerokit.errors import CheckpointError


def write(output: Path) -> None:
    check_output(output)
    with output_folder(output) as staging:
        (staging / "config.json").write_text("{}")
        (staging / "model").mkdir()
        (staging / "model" / "weights").touch()


FILES = ["config.json", "model", "model/weights"]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    write(tmp_path / "out")
    assert files(tmp_path) == ["out", *(f"out/{name}" for name in FILES)]


def test_an_empty_folder_stays_itself(tmp_path: Path) -> None:
    """As a mount point and a folder with an owner of its own must."""
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    before = out.stat()
    write(out)
    assert files(tmp_path) == ["out", *(f"out/{name}" for name in FILES)]
    after = out.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("name", [".", "", "../out"])
def test_the_current_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    write(Path(name))
    assert files(Path.cwd()) == FILES


def test_a_link_to_an_empty_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    write(tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert files(tmp_path / "disk") == FILES


def test_what_an_interrupted_process_left_in_an_empty_folder_is_in_nobodys_way(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt), output_folder(out):
        raise KeyboardInterrupt
    assert files(out) != []
    write(out)
    assert files(out) == FILES


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")], ids=["file", "link"])
def test_other_files_are_left_alone(make: object, tmp_path: Path) -> None:
    make(tmp_path / "out")  # type: ignore[operator]
    (tmp_path / "full" / "x").mkdir(parents=True)
    for name in ("out", "full"):
        with pytest.raises(CheckpointError, match="exists"):
            check_output(tmp_path / name)
