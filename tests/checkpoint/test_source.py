"""Checkpoints, looked at before any rank loads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_llama
from zerokit.checkpoint.source import _max_bytes, check_checkpoint, resolve_checkpoint, weight_files
from zerokit.documents import MAX_BYTES, MAX_TABLE_BYTES
from zerokit.errors import ModelError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    whole, sharded = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("sharded")
    tiny_llama(whole).save_pretrained(sharded, max_shard_size="100KB")
    return {"whole": whole, "sharded": sharded}


@pytest.fixture(params=["whole", "sharded"])
def folder(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a complete checkpoint, in one file or in several."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in models[request.param].iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def error_of(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_checkpoint(folder, where="model.path")
    assert caught.value.where == "model.path"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_complete_checkpoint_passes(folder: Path) -> None:
    config = check_checkpoint(folder, where="w")
    assert config.data["model_type"] == "llama"
    files = weight_files(folder, where="w")
    assert sum(tensor.numel() for file in files for tensor in load_file(file).values()) == 115_008


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_that_is_cut_short_is_named(keep: int, folder: Path) -> None:
    file = weight_files(folder, where="w")[-1]
    file.write_bytes(file.read_bytes()[:keep])
    assert f"{file} is damaged or cut short" in error_of(folder)


def test_a_file_that_may_not_be_read_is_not_called_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = weight_files(folder, where="w")[-1]
    monkeypatch.setattr("os.access", lambda path, mode: path != file)  # root may read all
    assert error_of(folder) == f"model.path: you may not read {file}. Ask its owner for read permission"


def test_bytes_that_are_no_safetensors_are_named(folder: Path) -> None:
    file = weight_files(folder, where="w")[0]
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n" * 3)
    assert f"{file} is damaged or cut short" in error_of(folder)


def test_empty_weights_say_how_they_came_about(folder: Path) -> None:
    file = weight_files(folder, where="w")[0]
    tensors = load_file(file)
    name = sorted(tensors)[0]
    save_file({**tensors, name: torch.zeros(0)}, file)
    message = error_of(folder)
    assert f"1 weights are empty, such as '{name}'" in message
    assert "stage3_gather_16bit_weights_on_model_save" in message


def test_a_tensor_with_no_dimensions_is_not_empty(folder: Path) -> None:
    file = weight_files(folder, where="w")[0]
    save_file({**load_file(file), "scale": torch.tensor(1.0)}, file)
    check_checkpoint(folder, where="w")


def test_a_shard_that_the_index_names_must_be_there(models: dict[str, Path], tmp_path: Path) -> None:
    for file in models["sharded"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    missing = weight_files(tmp_path, where="w")[1]
    missing.unlink()
    assert f"{missing} is missing. Copy the whole checkpoint" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is malformed"),
        ("[]", "is malformed"),
        ('{"metadata": {}}', "is malformed"),
        ('{"weight_map": []}', "is malformed"),
        ('{"weight_map": {"a": 5}}', "is malformed"),
        ('{"weight_map": {"a": 5, "b": "c"}}', "is malformed"),
        ('{"weight_map": {"a": [1]}}', "is malformed"),
        ('{"weight_map": {}}', "names no weights"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names '../model.safetensors', which is outside"),
        ('{"weight_map": {"a": "b/../../c.safetensors"}}', "names 'b/../../c.safetensors', which is outside"),
        ('{"weight_map": {"a": "/tmp/model.safetensors"}}', "names '/tmp/model.safetensors', which is"),
    ],
)
def test_an_index_that_cannot_be_used_is_named(index: str, message: str, folder: Path) -> None:
    file = folder / "model.safetensors.index.json"
    file.write_text(index)
    assert f"{file} {message}" in error_of(folder)


def test_pickled_weights_are_not_loaded(folder: Path) -> None:
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    assert "has no weights (model.safetensors)" in error_of(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    assert "only pickled weights (.bin), which can run code when loaded" in error_of(folder)


def test_an_adapter_is_a_set_of_weights(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    assert weight_files(tmp_path, where="w") == [tmp_path / "adapter_model.safetensors"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "has no config.json"),
        ("{", "config.json:1:2"),
        ("[]", "has no 'model_type'"),
        ('{"hidden_size": 1}', "has no 'model_type'"),
        ('{"model_type": "a", "model_type": "b"}', "appears twice"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(config: str | None, message: str, folder: Path) -> None:
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(config)
    assert message in error_of(folder)


@pytest.mark.parametrize("name", ["generation_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_a_file_without_end_is_not_given_to_transformers(name: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")
    assert f"{name} is a device, not a regular file" in error_of(folder)
    (folder / name).unlink()
    with (folder / name).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert f"{name} is larger than 4 MiB" in error_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("trainer_state.json", "eval_nbest_predictions.json", "corpus.txt", "lm.model", "tokenizer.log"),
        *("spiece.model", "entity_vocab.json"),
    ],
)
def test_the_size_of_files_that_transformers_does_not_read_whole_has_no_limit(name: str, folder: Path) -> None:
    is_table = name in ("spiece.model", "entity_vocab.json")
    with (folder / name).open("wb") as file:
        file.truncate(MAX_TABLE_BYTES + (not is_table))
    check_checkpoint(folder, where="w")
    if is_table:
        with (folder / name).open("wb") as file:
            file.truncate(MAX_TABLE_BYTES + 1)
        assert f"{name} is larger than 256 MiB" in error_of(folder)


def test_the_names_of_all_tokenizer_files_of_transformers_have_a_limit() -> None:
    sources = Path(transformers.__file__).parent.glob("models/*/tokenization_*.py")
    tables = [re.search(r"^VOCAB_FILES_NAMES = (\{.*?\})", file.read_text(), re.M | re.S) for file in sources]
    names = {name for table in tables if table for name in re.findall(r': "([^"]+\.[^"]+)"', table[1])}
    assert {"vocab.json", "spiece.model"} <= names
    assert [name for name in sorted(names) if _max_bytes(name) is None] == []


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_checkpoint("~/model", where="w") == tmp_path / "model"


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "a/b/c", "with space", "~/none"])
def test_a_missing_folder_is_not_looked_for_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("a request"))
    with pytest.raises(ModelError, match="no such model folder"):
        resolve_checkpoint(name, where="w")


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match="is a file, not a folder"):
        resolve_checkpoint(str(tmp_path / "model.safetensors"), where="w")


def test_a_hub_that_does_not_answer_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError) as caught:
        resolve_checkpoint("org/name", where="w")
    assert caught.value.message == "'org/name' is no local folder, and the Hub did not give it: no network"
    for name, meant in (("llama-3.1-8b-instruct", "Llama-3.1-8B-Instruct"), ("llama-3.1-9b", "Llama-3.1-8B")):
        with pytest.raises(ModelError, match=f"Did you mean 'meta-llama/{meant}'"):
            resolve_checkpoint(name, where="w")


@pytest.mark.parametrize("remote_code", [True, False])
def test_code_and_pickles_are_not_downloaded_unasked(
    remote_code: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        requested.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_checkpoint("org/name", where="w", revision="r", remote_code=remote_code) == tmp_path
    assert (requested["name"], requested["revision"]) == ("org/name", "r")
    assert ("*.py" in requested["allow_patterns"]) == remote_code
    assert not any(pattern.endswith((".bin", ".pt", ".pth")) for pattern in requested["allow_patterns"])
    assert json.dumps(requested["allow_patterns"])


def test_shards_in_folders_of_a_hub_model_are_downloaded_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = {"weight_map": {"a": "a/model.safetensors", "b": "b/model.safetensors", "c": "model.safetensors"}}
    requested: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        requested.append(options)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_checkpoint("org/name", where="w", revision="r") == tmp_path
    assert [options["revision"] for options in requested] == ["r", "r"]
    assert requested[1]["allow_patterns"] == ["a/model.safetensors", "b/model.safetensors"]


@pytest.mark.parametrize("name", ["../private.safetensors", "/etc/passwd", "link.safetensors"])
def test_weights_are_files_of_the_folder(name: str, folder: Path) -> None:
    weights = {"weight": torch.ones(2)}
    save_file(weights, folder.parent / "private.safetensors")
    if name == "link.safetensors":
        (folder / name).symlink_to("../private.safetensors")
    (folder / "model.safetensors").unlink(missing_ok=True)
    index = {"metadata": {}, "weight_map": {"weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    reason = "leads out of its folder" if name == "link.safetensors" else "is outside its folder"
    assert reason in error_of(folder)
    with pytest.raises(ModelError, match=reason):
        weight_files(folder, where="w")


@pytest.mark.parametrize(
    "name", ["tokenizer.notes", "modeling.py", "custom_generate/generate.py", "additional_chat_templates/a.jinja"]
)
def test_what_transformers_would_read_is_in_the_folder(name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to("/proc/self/environ")
    assert f"{folder / name} is made up by the kernel" in error_of(folder)
    (folder / name).unlink()
    (folder / name).symlink_to(Path(__file__))
    assert f"{folder / name} leads out of its folder" in error_of(folder)
    (folder / name).unlink()
    (folder / "README.md").symlink_to("/dev/zero")  # not read
    check_checkpoint(folder, where="w")
