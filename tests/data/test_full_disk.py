"""A disk that is full beneath a cache of Hugging Face's: one line says which, and nothing blames the data."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NoReturn

import datasets
import huggingface_hub
import pytest

from zerokit.data.full_disk import report_full_disk
from zerokit.data.sources import load_examples
from zerokit.errors import DataError

pytestmark = pytest.mark.torch


def test_a_file_without_room_for_its_table_is_no_fault_of_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr("os.fsync", refuse)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError) as caught:
        load_examples(str(tmp_path / "a.jsonl"), where="data.train")
    assert str(caught.value) == _room_line(str(cache), "datasets", "HF_DATASETS_CACHE")
    assert list((cache / "zerokit").iterdir()) == []


def _room_line(folder: str, cache: str, variable: str) -> str:
    return (
        f"{folder}: no room is left on the disk of the cache of {cache}. "
        f"Make room there, or set {variable} to a folder on another disk"
    )


def test_what_datasets_finds_too_little_room_for_is_no_fault_of_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(*args: object, **options: object) -> Any:
        return read("json", data_files=str(tmp_path / "a.jsonl"), split="train")

    read = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.builder, "has_sufficient_disk_space", lambda *_, **__: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError) as caught:
        load_examples("owner/name", where="data.train")
    assert str(caught.value) == _room_line(f"{tmp_path}/cache", "datasets", "HF_DATASETS_CACHE")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("/hub/datasets--a--b/blobs/c.incomplete", _room_line("/hub", "the Hub", "HF_HUB_CACHE")),
        ("/cache/json/d.lock", _room_line("/cache", "datasets", "HF_DATASETS_CACHE")),
        ("/tmp/e", "/tmp: no room is left on its disk. Make room there"),
        (None, _room_line("/cache", "datasets", "HF_DATASETS_CACHE")),
    ],
)
def test_the_disk_is_that_of_the_file_that_has_no_room(
    file: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*args: object, **options: object) -> NoReturn:
        error = OSError(errno.ENOSPC, "No space left on device", file)
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from error

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/hub")
    with pytest.raises(DataError) as caught:
        load_examples("owner/name", where="data.train")
    assert str(caught.value) == line


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(OSError, match="refused"), report_full_disk():
        raise OSError(errno.EACCES, "refused")
