"""Digests that are remembered between runs, only while they are those of the files."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zerokit import digest_cache as module
from zerokit.digest_cache import digest_cache

HOUR_NS = 3_600_000_000_000


@pytest.fixture(autouse=True)
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour later, on a file system with ctimes, with a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "file_system", lambda _: "ext4")
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + HOUR_NS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("old")
    return file


def digest(*files: Path, kind: str = "kind") -> tuple[str, bool]:
    """A digest, and whether it was computed."""
    computed = []

    def compute() -> str:
        computed.append(files)
        return " ".join(file.read_text() for file in files)

    with digest_cache() as digests:
        return digests.get(kind, files, compute), bool(computed)


def remembered(tmp_path: Path) -> Path:
    return tmp_path / "cache/zerokit/digests.json"


def test_a_digest_is_computed_once(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    assert [digest(file), digest(file)] == [("old", True), ("old", False)]
    assert [digest(file, kind="another"), digest(file, other)] == [("old", True), ("old other", True)]
    assert [digest(file), digest(file, other), digest(other, file)] == [
        *(("old", False), ("old other", False), ("other old", True))
    ]
    link = tmp_path / "link"
    link.symlink_to(file)
    assert digest(link) == ("old", False)


def written_over(file: Path, new: Path) -> None:
    file.write_text(new.read_text())


def copied(file: Path, new: Path) -> None:
    shutil.copy2(new, file)


def moved(file: Path, new: Path) -> None:
    new.rename(file)


@pytest.mark.parametrize("replace", [written_over, copied, moved])
def test_a_file_of_the_same_size_and_time_is_read(
    replace: Callable[[Path, Path], object], file: Path, tmp_path: Path
) -> None:
    new, before = tmp_path / "new", file.stat()
    assert digest(file) == ("old", True)
    while True:  # until the clock of the file system has moved on
        new.write_text("new")
        os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
        if new.stat().st_ctime_ns > before.st_ctime_ns:
            break
    replace(file, new)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest(file) == ("new", True)


@pytest.mark.parametrize("reason", ["recent", "future", "fuse.sshfs", "vfat", "missing"])
def test_what_does_not_identify_the_content_is_not_remembered(
    reason: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = file.stat().st_ctime_ns
    if reason in ("recent", "future"):
        now = changed + (1_900_000_000 if reason == "recent" else -HOUR_NS)
        monkeypatch.setattr(time, "time_ns", lambda: now)
    elif reason == "missing":
        with pytest.raises(FileNotFoundError):
            digest(tmp_path / "missing")
    else:
        monkeypatch.setattr(module, "file_system", lambda _: reason)
    if reason != "missing":
        assert [digest(file), digest(file)] == [("old", True), ("old", True)]
    assert not remembered(tmp_path).exists()


def test_a_file_that_changes_while_it_is_digested_is_not_remembered(file: Path) -> None:
    with digest_cache() as digests:
        assert digests.get("kind", [file], lambda: str(file.write_text("longer"))) == "6"
    assert digest(file) == ("longer", True)


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"a": 1}', b"\xff", b"[" * 100_000, b" " * (5 << 20), "folder", "pipe", "link"]
)
def test_a_damaged_cache_is_empty(content: bytes | str, file: Path, tmp_path: Path) -> None:
    cache = remembered(tmp_path)
    cache.parent.mkdir(parents=True)
    theirs = tmp_path / "theirs"
    theirs.write_text(json.dumps({"theirs": "digest"}))
    make = {"folder": cache.mkdir, "pipe": lambda: os.mkfifo(cache), "link": lambda: cache.symlink_to(theirs)}
    if isinstance(content, bytes):
        cache.write_bytes(content)
    else:
        make[content]()
    assert digest(file) == ("old", True)
    assert digest(file) == ("old", content == "folder")
    assert theirs.read_text() == json.dumps({"theirs": "digest"})


def test_without_a_cache_folder_nothing_is_remembered(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert [digest(file), digest(file)] == [("old", True), ("old", True)]


def test_the_oldest_digests_are_forgotten(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ENTRIES", 3)
    for kind in "abcd":
        digest(file, kind=kind)
    assert len(json.loads(remembered(tmp_path).read_text())) == 3
    assert [digest(file, kind=kind)[1] for kind in "bcda"] == [False, False, False, True]


def test_the_largest_cache_is_read(file: Path, tmp_path: Path) -> None:
    digests = {f"{number:032x}": f"xxh3_128:{number:032x}" for number in range(module._MAX_ENTRIES)}
    remembered(tmp_path).parent.mkdir(parents=True)
    remembered(tmp_path).write_text(json.dumps(digests, indent=0))
    digest(file)
    assert len(json.loads(remembered(tmp_path).read_text())) == module._MAX_ENTRIES
    assert digest(file) == ("old", False)
