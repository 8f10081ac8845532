"""The digest of a model's weights: any changed byte changes it, copying and other shards do not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_llama
from zerokit.checkpoint import weights_digest as module
from zerokit.checkpoint.weights_digest import weights_digest
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import DataError, ModelError
from zerokit.training.prepare import _weights_digest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of three tensors, in chunks of 1 KiB."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1024)
    tensors = {"a": torch.arange(5000.0), "b": torch.ones(3, 7).to(torch.bfloat16), "c": torch.tensor(1.0)}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def test_every_byte_of_a_tensor_counts(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    seen = {weights_digest(folder, where="w")}
    places = [begin, begin + 4096, begin + 4097, (begin + len(content)) // 2, len(content) - 1]
    for place in places:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        seen.add(weights_digest(folder, where="w"))
    assert len(seen) == 1 + len(places)


def test_unchanged_weights_are_not_read_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("zerokit.digest_cache.file_system", lambda _: "ext4")
    in_an_hour = (folder / "model.safetensors").stat().st_ctime_ns + 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: in_an_hour)
    first = weights_digest(folder, where="w")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_chunk_digest", lambda *_: pytest.fail("read again"))
        assert weights_digest(folder, where="w") == first
    file = folder / "model.safetensors"
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights_digest(folder, where="w") != first


def test_names_types_and_shapes_count(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    seen = {weights_digest(folder, where="w")}
    for changed in (
        {"a": tensors["a"], "b": tensors["b"], "d": tensors["c"]},
        {**tensors, "a": tensors["a"].reshape(2, 2500)},
        {**tensors, "a": tensors["a"].view(torch.int32)},
        {"a": tensors["a"], "b": tensors["b"]},
    ):
        save_file(changed, file)
        seen.add(weights_digest(folder, where="w"))
    assert len(seen) == 5


def test_shards_and_metadata_do_not_count(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "whole")
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    save = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    (tmp_path / "again").mkdir()
    save_file(save, tmp_path / "again/model.safetensors", metadata={"by": "another program"})
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert len({weights_digest(tmp_path / name, where="w") for name in ("whole", "sharded", "again")}) == 1


@pytest.mark.parametrize("content", [b"", b"\xff" * 9, b"\2\0\0\0\0\0\0\0[]", b'\7\0\0\0\0\0\0\0{"a":1}'])
def test_a_header_that_tells_of_no_tensors_has_no_digest(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        weights_digest(tmp_path, where="w")


@pytest.mark.parametrize("offsets", [[0, 10**30], [-8, 8], [8, 0], [0], [0, "8"], None])
def test_a_tensor_that_lies_beyond_its_file_has_no_digest(offsets: Any, tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        weights_digest(tmp_path, where="w")


@pytest.mark.parametrize("same", [True, False])
def test_all_machines_start_from_the_same_weights(same: bool, folder: Path) -> None:
    """One rank of each reads them; another machine may have a copy of its own."""
    elsewhere = weights_digest(folder, where="w") if same else "xxh3_128:0"
    group: Any = RankGroup(Ranks())
    group.gather_objects = lambda own: [own] if own is None else [own, (own[0], []), ("other", [elsewhere])]
    loaded: Any = SimpleNamespace(where=lambda *_: "model.path")
    model: Any = SimpleNamespace(folder=folder)
    if same:
        assert _weights_digest(group, loaded, model) == elsewhere
        return
    with pytest.raises(DataError, match=r"model\.path: the files have different content on .* and other"):
        _weights_digest(group, loaded, model)
