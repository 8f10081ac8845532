"""What zerokit makes at names that it chooses: only its own is cleared, and nothing is written through."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zerokit.errors import ZerokitError
from zerokit.staging import (
    MARK,
    check_own_name,
    check_staging,
    clear,
    is_staging,
    make_folder,
    make_private_file,
    make_staging,
    open_private_file,
    remove,
    remove_empty,
)


def test_a_staging_folder_is_made_cleared_and_removed(tmp_path: Path) -> None:
    folder = make_staging(tmp_path / "staging")
    (folder / "deep/er").mkdir(parents=True)
    for name in ("kept", "other", "deep/er/file"):
        (folder / name).touch()
    (folder / "link").symlink_to(tmp_path)
    clear(folder, kept=["kept"])
    assert sorted(path.name for path in folder.iterdir()) == [MARK, "kept"]
    assert make_staging(folder) == folder
    remove(folder / "kept")
    remove(folder)
    assert list(tmp_path.iterdir()) == []
    remove(folder)  # which is not there


def test_an_empty_folder_becomes_a_staging_folder_and_one_with_files_does_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert is_staging(make_staging(tmp_path / "empty"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").touch()
    for attempt in (check_staging, make_staging):
        with pytest.raises(
            ZerokitError, match=r"theirs: does not have the mark .* An earlier version may have left it: remove it"
        ):
            attempt(tmp_path / "theirs")
    for leave in (clear, remove, remove_empty):
        leave(tmp_path / "theirs")
    assert (tmp_path / "theirs/file").exists()


def test_a_folder_that_gets_something_as_it_is_removed_keeps_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_staging(tmp_path / "staging")
    really = Path.unlink

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        (folder / "of another process").touch()
        really(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    remove_empty(folder)
    monkeypatch.undo()
    assert is_staging(folder)
    assert (folder / "of another process").exists()


def link_to_folder(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs.parent)


def link_to_file(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs)


def link_to_nothing(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs.with_name("nothing"))


def second_name(path: Path, theirs: Path) -> None:
    path.hardlink_to(theirs)


def pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(path)


PLANTS = [link_to_folder, link_to_file, link_to_nothing, second_name, pipe]


@pytest.fixture(params=PLANTS, ids=lambda plant: plant.__name__)
def planted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path at which a link, or the like, lies. What it leads to is in the folder ``theirs``."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").write_text("theirs")
    (tmp_path / "own").mkdir()
    request.param(tmp_path / "own/name", tmp_path / "theirs/file")
    return tmp_path / "own/name"


@pytest.mark.parametrize("refuse", [check_own_name, check_staging, make_staging, make_folder, open_private_file])
def test_what_is_not_zerokits_is_refused_with_a_line(refuse: Callable[[Path], object], planted: Path) -> None:
    with pytest.raises(ZerokitError) as caught:
        refuse(planted)
    assert str(caught.value).startswith(f"{planted}: is ")
    assert str(caught.value).endswith(". Remove it")
    assert_untouched(planted)


def test_a_file_to_add_to_is_ones_own(planted: Path) -> None:
    had = planted.read_text() if planted.is_file() and not planted.is_symlink() else ""
    make_private_file(planted)
    with open_private_file(planted) as file:
        file.write("more")
    assert planted.read_text() == f"{had}more"
    assert_untouched(planted)


def assert_untouched(planted: Path) -> None:
    theirs = planted.parents[1] / "theirs"
    assert [path.name for path in theirs.iterdir()] == ["file"]
    assert (theirs / "file").read_text() == "theirs"


def test_a_folder_whose_mark_is_a_link_is_not_zerokits(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").touch()
    (tmp_path / "folder" / MARK).symlink_to(tmp_path / "other")
    with pytest.raises(ZerokitError, match="does not have the mark"):
        make_staging(tmp_path / "folder")
