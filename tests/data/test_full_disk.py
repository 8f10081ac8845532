"""A disk that is full beneath the cache of ``datasets``: one line says which, and nothing blames the data."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import datasets
import pytest

from zerokit.data.full_disk import full_disk_told
from zerokit.data.sources import load_examples
from zerokit.errors import DataError

pytestmark = pytest.mark.torch


def test_a_full_disk_is_no_fault_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def load(*args: object, **options: object) -> NoReturn:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise datasets.exceptions.DatasetGenerationError("An error occurred") from error

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/cache"))
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError) as caught:
        load_examples(str(tmp_path / "a.jsonl"), where="data.train")
    assert str(caught.value) == (
        "/cache: no room is left on the disk of the cache of datasets. "
        "Make room there, or set HF_DATASETS_CACHE to a folder on another disk"
    )


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(OSError, match="refused"), full_disk_told():
        raise OSError(errno.EACCES, "refused")
