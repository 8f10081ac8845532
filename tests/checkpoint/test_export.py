"""What an export and a look at all of a checkpoint do not overlook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint.small import save_checkpoint, save_stage_2, save_stage_3
from zerokit.checkpoint import export as module
from zerokit.checkpoint.compare import compare
from zerokit.checkpoint.export import export
from zerokit.checkpoint.verify import verify
from zerokit.documents import MAX_BYTES
from zerokit.errors import CheckpointError, ZerokitError

CONFIG = json.dumps({"model_type": "llama"})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_two_exports_to_one_folder_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1", first=torch.ones(9), second=torch.ones(9))
    monkeypatch.setattr(module, "SHARD_BYTES", 40)
    write, refused = module.write_safetensors, []

    def with_another(file: Path, *arguments: Any) -> str:
        monkeypatch.setattr(module, "write_safetensors", write)
        with pytest.raises(ZerokitError) as caught:
            export(run, tmp_path / "model", dtype="bf16", needs_config=False)
        monkeypatch.setattr(module, "write_safetensors", with_another)
        refused.append(caught.value)
        return write(file, *arguments)

    monkeypatch.setattr(module, "write_safetensors", with_another)
    done = export(run, tmp_path / "model", needs_config=False)
    assert ["is being written by another process" in str(error) for error in refused] == [True, True]
    assert sorted([*done.files, "SHA256SUMS"]) == names(tmp_path / "model")
    assert names(tmp_path) == ["model", "run"]


def test_a_file_that_is_lost_meanwhile_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1")
    write_sums = module.write_checksums

    def losing(folder: Path, sums: dict[str, str]) -> None:
        write_sums(folder, sums)
        (folder / "model.safetensors").unlink(missing_ok=True)

    monkeypatch.setattr(module, "write_checksums", losing)
    with pytest.raises(ZerokitError, match=r"has lost 'model\.safetensors' during the export"):
        export(run, tmp_path / "model", needs_config=False)
    assert not (tmp_path / "model").exists()


def test_what_a_killed_export_left_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1")

    def killed(file: Path, *_: Any) -> str:
        (file.parent / f".{file.name}.0123").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_safetensors", killed)
        with pytest.raises(KeyboardInterrupt):
            export(run, tmp_path / "model", needs_config=False)
    export(run, tmp_path / "model", needs_config=False)
    assert names(tmp_path / "model") == ["SHA256SUMS", "model.safetensors"]


@pytest.mark.parametrize(
    ("step", "place", "taken"),
    [
        ("run/global_step1", "run", True),
        ("run/checkpoint-1/global_step1", "run", True),
        ("run/checkpoint_0/pytorch_model", "run", True),
        ("run/pytorch_model", "run", True),
        ("run/global_step1", ".", False),
        ("run/pytorch_model", ".", False),
        ("run", ".", False),
    ],
)
def test_a_config_is_of_the_run_or_none(step: str, place: str, taken: bool, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / step)
    (tmp_path / place / "config.json").write_text(CONFIG)
    if not taken:
        with pytest.raises(CheckpointError, match=r"there is no config\.json in the folder of the run"):
            export(tmp_path / step, tmp_path / "model")
    else:
        assert export(tmp_path / step, tmp_path / "model").config == tmp_path / place / "config.json"


def test_what_is_not_the_models_is_not_looked_at(tmp_path: Path) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1").parent
    (run / "config.json").write_text(CONFIG)
    (run / "trainer_state.json").write_text(" " * (MAX_BYTES + 1))  # of a long run
    export(run, tmp_path / "model")
    (run / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(ZerokitError, match=r"tokenizer\.json:? is a device, not a regular file"):
        export(run, tmp_path / "other")
    assert names(tmp_path) == ["model", "run"]  # and nothing of the other


def test_a_config_of_something_else_is_not_a_models(tmp_path: Path) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1").parent
    (run / "config.json").write_text('{"name": "my webapp"}')
    with pytest.raises(CheckpointError, match=r"config\.json: has no 'model_type'"):
        export(run, tmp_path / "model")
    export(run, tmp_path / "model", needs_config=False)
    assert not (tmp_path / "model/config.json").exists()


def test_a_model_of_integers_has_no_type_of_floats(tmp_path: Path) -> None:
    run = save_checkpoint(tmp_path / "run/global_step1", weight=torch.ones(4, dtype=torch.int8))
    (run / "config.json").write_text(CONFIG)
    export(run, tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text()) == {"model_type": "llama"}


def test_weights_without_checksums_are_not_taken_for_tied(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        run = save_checkpoint(tmp_path / "run/global_step1", first=torch.ones(3, 2), second=torch.zeros(3, 2))
    finally:
        torch.serialization.set_crc32_options(before)
    (run / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 3}))
    assert verify(run).without_checksums == [run / "mp_rank_00_model_states.pt"]
    assert export(run, tmp_path / "model").num_tensors == 2


@pytest.mark.parametrize("shape", [[4, 5], [2, 8]])
def test_shapes_of_the_optimizer_are_those_of_the_model(shape: list[int], tmp_path: Path) -> None:
    weight = torch.arange(20.0).reshape(5, 4) if shape == [4, 5] else torch.arange(16.0).reshape(4, 4)
    run = save_stage_2(tmp_path / "run/global_step1", weight, shape)
    for look in (verify, lambda path: export(path, tmp_path / "model", needs_config=False)):
        with pytest.raises(CheckpointError, match=r"has 'weight' of shape \[\d, 4\], and the optimizer of \["):
            look(run)


@pytest.mark.parametrize("other", [torch.full((3,), 2.0), torch.full((2,), 2.0)])
def test_buffers_may_differ_between_ranks(other: torch.Tensor, tmp_path: Path) -> None:
    buffers = [{"_orig_mod.mean": one, "same": torch.ones(2)} for one in (torch.ones(3), other)]
    run = save_stage_3(tmp_path / "run/global_step1", *buffers)
    assert verify(run).remarks.differing == ["mean"]
    done = export(run, tmp_path / "model", needs_config=False)
    assert done.notes == ["different on some ranks; exported from rank 0: 1 tensor, such as 'mean'"]
    assert load_file(tmp_path / "model/model.safetensors")["mean"].tolist() == [1, 1, 1]


def test_what_verify_did_not_look_at_is_named(tmp_path: Path) -> None:
    step = save_checkpoint(tmp_path / "checkpoint-1/global_step1")
    above = step.parent
    for name in ("trainer_state.json", "training_args.bin"):
        (above / name).write_text("{}")
    save_file({"weight": torch.ones(1)}, above / "model.safetensors")
    found = verify(above)
    assert [file.name for file in found.not_read] == ["trainer_state.json", "training_args.bin"]
    assert found.without_checksums == [above / "model.safetensors"]
    (above / "model.safetensors").write_bytes(b"rubble")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged or cut short"):
        verify(above)


@pytest.mark.parametrize("shape", ["[Infinity]", "[" * 100_000])
def test_a_header_that_is_none_is_named(shape: str, tmp_path: Path) -> None:
    header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 0]}}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged or cut short"):
        list(compare(tmp_path, tmp_path))
    with pytest.raises(CheckpointError, match="no such folder"):
        list(compare(tmp_path / ("a" * 300), tmp_path))
