"""Archives of `torch.save` that are made to harm, or otherwise than usual."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zerokit.checkpoint import archive
from zerokit.checkpoint.archive import read_archive
from zerokit.checkpoint.pickle_memo import check_memo
from zerokit.errors import CheckpointError

HUGE_MEMO = b"\x80\x02Nr" + (100_000_000).to_bytes(4, "little") + b"."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save({"weight": torch.arange(6.0)}, tmp_path / "states.pt")
    return tmp_path / "states.pt"


def put(file: Path, name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Write an archive again with another member."""
    with zipfile.ZipFile(file) as old:
        members = {member: old.read(member) for member in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for member, old_content in members.items():
            if member == f"states/{name}":
                new.writestr(member, content, compression)
            else:
                new.writestr(member, old_content)


@pytest.mark.parametrize(
    ("name", "content", "compression", "said"),
    [
        ("byteorder", b"little", zipfile.ZIP_DEFLATED, "states/byteorder is compressed"),
        ("byteorder", b"little" * 1000, zipfile.ZIP_STORED, "states/byteorder has 6,000 bytes"),
        ("data.pkl", b"N.", zipfile.ZIP_DEFLATED, "states/data.pkl is compressed"),
        ("data.pkl", b"N." * 600, zipfile.ZIP_STORED, "states/data.pkl has 1,200 bytes"),
        ("data.pkl", HUGE_MEMO, zipfile.ZIP_STORED, "its pickle has an object of number 100,000,000"),
        ("data.pkl", b"Np99999999\n.", zipfile.ZIP_STORED, "its pickle has an object of number 99,999,999"),
    ],
)
def test_a_bomb_is_refused(
    name: str, content: bytes, compression: int, said: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MOST_OF_PICKLE", 1000)
    put(file, name, content, compression)
    with pytest.raises(CheckpointError, match=said):
        read_archive(file)


def test_a_plain_pickle_is_no_bomb_either(file: Path) -> None:
    file.write_bytes(HUGE_MEMO)
    with pytest.raises(CheckpointError, match="its pickle has an object of number 100,000,000"):
        read_archive(file)


def test_an_archive_without_checksums_is_read(file: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"weight": torch.arange(6.0)}, file)
    finally:
        torch.serialization.set_crc32_options(before)
    found = read_archive(file)
    assert found.content["weight"].shape == (6,)
    assert [storage.crc for storage in found.storages] == [None]


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_what_is_no_file_is_not_waited_for(make: Callable[[Path], Any], file: Path) -> None:
    file.unlink()
    make(file)
    with pytest.raises(CheckpointError, match=r"states\.pt: is a (pipe|device), not a regular file"):
        read_archive(file)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_is_followed_to_its_end_in_all_protocols_and_not_without_one(protocol: int) -> None:
    data = [None, True, 7, 300, -1, 1 << 70, 1 << 3000, 0.5, b"a" * 300, bytearray(b"r"), "\u00e9r" * 200]
    content = pickle.dumps([data, {"r": (1, 2), "x": [str(n) for n in range(400)]}, {3}, Path("a")], protocol)
    check_memo(io.BytesIO(content))
    for end in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"its pickle has (no end|an unknown operation)"):
            check_memo(io.BytesIO(content[:end]))
