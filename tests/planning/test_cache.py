"""What is remembered between runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.planning import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "zerokit" / "plans"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)


def test_a_result_is_found_by_its_key(folder: Path) -> None:
    assert cache.remembered(["job", 1]) is None
    cache.remember(["job", 1], {"answer": [1, 2.5, "x"]})
    assert cache.remembered(["job", 1]) == {"answer": [1, 2.5, "x"]}
    assert cache.remembered(["job", 2]) is None
    cache.remember(["job", 1], "new")
    assert cache.remembered(["job", 1]) == "new"
    assert len(_files(folder)) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"digest\n{}", b"[" * 100_000])
def test_a_damaged_file_counts_as_absent(folder: Path, content: bytes) -> None:
    cache.remember("key", 1)
    _files(folder)[0].write_bytes(content)
    assert cache.remembered("key") is None


def test_a_changed_result_counts_as_absent(folder: Path) -> None:
    cache.remember("key", 100)
    file = _files(folder)[0]
    file.write_bytes(file.read_bytes().replace(b"100", b"200"))
    assert cache.remembered("key") is None


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    cache.remember("key", 1)
    file, target = _files(folder)[0], tmp_path / "target"
    target.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(target)
    assert cache.remembered("key") is None
    before = target.read_bytes()
    cache.remember("key", 2)
    assert target.read_bytes() == before
    assert cache.remembered("key") == 2

    moved = tmp_path / "moved"
    folder.rename(moved)
    folder.symlink_to(moved)
    assert cache.remembered("key") is None
    cache.remember("other", 3)
    assert len(list(moved.iterdir())) == 1


def test_the_oldest_results_are_removed_above_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_BYTES", 1000)
    for number in range(8):
        cache.remember(number, "x" * 150)
        for file in _files(folder):
            found = file.stat()
            os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns - 10**9))
    assert sum(file.stat().st_size for file in _files(folder)) <= 1000
    assert cache.remembered(0) is None
    assert cache.remembered(7) == "x" * 150
    cache.remember("large", "x" * 500)  # more than a quarter
    assert cache.remembered("large") is None
    assert cache.remembered(7) is not None


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in its place")
    cache.remember("key", 1)
    assert cache.remembered("key") is None
