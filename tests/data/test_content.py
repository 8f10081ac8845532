"""A data file that replaces another is read, although it has the same path, size and time."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.data.formats import OF_TEXTS
from zerokit.data.content import digest_files, sampled_digest
from zerokit.data.sources import load_examples
from zerokit.data.streams import ExampleStream
from zerokit.errors import DataError

pytestmark = pytest.mark.torch

MOMENT = 1_700_000_000_000_000_000
OLD, NEW = [{"text": "old one"}, {"text": "old two"}], [{"text": "new one"}, {"text": "new two"}]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def put(file: Path, content: bytes) -> None:
    """As ``cp -p``, ``rsync -a`` and ``tar -x`` put it there."""
    if file.exists():
        assert file.stat().st_size == len(content)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    os.utime(file, ns=(MOMENT, MOMENT))


def texts(source: str | list[str]) -> list[str]:
    loaded = list(load_examples(source, where="data.train").column("text"))
    assert [row["text"] for row in ExampleStream(source, where="data.train").read()] == loaded
    return loaded


@pytest.mark.parametrize("name", [*OF_TEXTS, "a.txt"])
def test_a_replaced_file_of_any_format_is_read(name: str, tmp_path: Path) -> None:
    write = OF_TEXTS.get(name, lambda rows: "\n\n".join(row["text"] for row in rows).encode())
    file = tmp_path / "data" / name
    for rows in (OLD, NEW, OLD):
        put(file, write(rows))
        assert texts(str(file)) == [row["text"] for row in rows]


@pytest.mark.parametrize("source", ["{}", "{}/*.jsonl", ["{}/a.jsonl", "{}/b.jsonl"]])
def test_a_replaced_file_among_others_is_read(source: str | list[str], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    named = source.format(folder) if isinstance(source, str) else [one.format(folder) for one in source]
    write = OF_TEXTS["a.jsonl"]
    for rows in (OLD, NEW):
        put(folder / "a.jsonl", write(OLD))
        put(folder / "b.jsonl", write(rows))
        assert texts(named) == [row["text"] for row in [*OLD, *rows]]


def test_a_replaced_folder_that_datasets_has_saved_is_read(tmp_path: Path) -> None:
    for rows in (OLD, NEW):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "data")
        for file in (tmp_path / "data").iterdir():
            os.utime(file, ns=(MOMENT, MOMENT))
        assert texts(str(tmp_path / "data")) == [row["text"] for row in rows]


def test_files_are_read_once_while_their_content_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a touch, and under another name."""
    put(tmp_path / "data" / "a.jsonl", OF_TEXTS["a.jsonl"](OLD))
    first = load_examples(str(tmp_path / "data/a.jsonl"), where="w")
    os.utime(tmp_path / "data/a.jsonl")
    (tmp_path / "data/a.jsonl").rename(tmp_path / "data/b.jsonl")
    monkeypatch.setattr("zerokit.data.table_cache._write", lambda *_: pytest.fail("read again"))
    again = load_examples(str(tmp_path / "data/b.jsonl"), where="w")
    assert list(again) == list(first)
    assert again.table.cache_files == first.table.cache_files


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data" / "a.jsonl"
    put(file, OF_TEXTS["a.jsonl"](OLD))
    contents = digest_files([file])
    file.write_bytes(OF_TEXTS["a.jsonl"](NEW))
    with pytest.raises(DataError, match="changed while it was read"):
        load_examples(str(file), where="w", contents=contents)
    assert texts(str(file)) == ["new one", "new two"]
    put(file, OF_TEXTS["a.jsonl"](OLD))
    assert texts(str(file)) == ["old one", "old two"]


def test_inodes_may_differ_at_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on FUSE file systems that number files as they are opened."""
    file = tmp_path / "data" / "a.jsonl"
    put(file, OF_TEXTS["a.jsonl"](OLD))
    stat, inodes = Path.stat, itertools.count(1)

    def stat_anew(path: Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        named = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return os.stat_result([found.st_mode, next(inodes), *found[2:]], named)

    monkeypatch.setattr(Path, "stat", stat_anew)
    assert [row["text"] for row in load_examples(str(file), where="w")] == ["old one", "old two"]
    contents = digest_files([file])
    put(file, OF_TEXTS["a.jsonl"](NEW))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(DataError, match="changed while it was read"):
        load_examples(str(file), where="w", contents=contents)


def test_unchanged_files_are_not_digested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("zerokit.digest_cache.file_system", lambda _: "ext4")
    file = tmp_path / "data" / "a.jsonl"
    put(file, OF_TEXTS["a.jsonl"](OLD))
    in_an_hour = file.stat().st_ctime_ns + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: in_an_hour)
    first = digest_files([file]), sampled_digest([file])
    with monkeypatch.context() as patched:
        for name in ("_digest_file", "_sample"):
            patched.setattr(f"zerokit.data.content.{name}", lambda _: pytest.fail("read again"))
        assert (digest_files([file]), sampled_digest([file])) == first
    put(file, OF_TEXTS["a.jsonl"](NEW))
    assert digest_files([file]) != first[0]
    assert sampled_digest([file]) != first[1]


def test_a_damaged_table_in_the_cache_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "data" / "a.jsonl"
    put(file, OF_TEXTS["a.jsonl"](OLD))
    assert texts(str(file)) == ["old one", "old two"]
    (table,) = (tmp_path / "cache").rglob("rows.arrow")
    for content in (b"", table.read_bytes()[:-100], None):
        table.unlink()
        if content is not None:
            table.write_bytes(content)
        assert texts(str(file)) == ["old one", "old two"]


def changes(content: bytearray) -> Iterator[Callable[[], Any]]:
    yield lambda: content.__setitem__(0, 1)
    yield lambda: content.__setitem__(-1, 1)
    yield lambda: content.__setitem__(len(content) // 2, 1)


def test_the_digest_of_streamed_files_sees_all_of_small_files_and_blocks_of_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = 24 << 20
    monkeypatch.setattr("zerokit.data.content.SAMPLED_BYTES", sampled)
    file, other = tmp_path / "a", tmp_path / "b"
    content = bytearray(3 << 20)
    file.write_bytes(content)
    digests = {sampled_digest([file])}
    for change in changes(content):
        change()
        file.write_bytes(content)
        digests.add(sampled_digest([file]))
    other.write_bytes(content)
    assert sampled_digest([other]) in digests
    digests |= {sampled_digest([file, other]), sampled_digest([file, file, file])}
    assert len(digests) == 6
    with other.open("wb") as large:  # holes, which are read and take no room
        large.truncate(sampled * 3)
    before = sampled_digest([other])
    with other.open("r+b") as large:
        large.seek(sampled)
        large.write(b"x" * (3 << 20))
    assert sampled_digest([other]) != before
