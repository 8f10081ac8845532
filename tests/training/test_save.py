"""Saving: the new model or the old one, and nothing between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from zerokit.checkpoint.source import check_checkpoint
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import CheckpointError
from zerokit.training.save import save_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class StubTrainer:
    """Saves what it is given, as the Trainer does."""

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        self.model = model
        self.options = options

    def save_model(self, folder: str) -> None:
        assert not Path(folder).exists()  # nothing of an earlier save is mixed in
        self.model.save_pretrained(folder, **self.options)
        (Path(folder) / "training_args.bin").write_bytes(b"a pickle")


def save(trainer: Any, folder: Path) -> list[Path]:
    return save_model(trainer, folder, RankGroup(Ranks()))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_what_is_saved_can_be_started_from(model: PreTrainedModel, tmp_path: Path) -> None:
    files = save(StubTrainer(model), tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert {file.name for file in files} == {"config.json", "generation_config.json", "model.safetensors"}
    check_checkpoint(tmp_path, where="w")
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(("first", "second"), [("100KB", "5GB"), ("5GB", "100KB"), ("100KB", "200KB")])
def test_a_new_model_replaces_all_files_of_the_old_one(
    first: str, second: str, model: PreTrainedModel, tmp_path: Path
) -> None:
    save(StubTrainer(model, max_shard_size=first), tmp_path)
    (tmp_path / "metrics.jsonl").write_text("kept")
    files = save(StubTrainer(model, max_shard_size=second), tmp_path)
    assert set(files) | {tmp_path / "metrics.jsonl"} == set(tmp_path.iterdir())
    check_checkpoint(tmp_path, where="w")


def test_what_a_crash_left_in_the_staging_folder_is_not_published(
    model: PreTrainedModel, tmp_path: Path
) -> None:
    (tmp_path / ".saving").mkdir()
    (tmp_path / ".saving" / "model-00001-of-00002.safetensors").write_bytes(b"half")
    save(StubTrainer(model), tmp_path)
    assert not list(tmp_path.glob("model-*"))
    assert not (tmp_path / ".saving").exists()


def test_a_full_model_replaces_an_adapter(model: PreTrainedModel, tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("old")
    save(StubTrainer(model), tmp_path)
    assert not list(tmp_path.glob("adapter_*"))


def test_folders_of_the_tokenizer_are_replaced(model: PreTrainedModel, tmp_path: Path) -> None:
    class WithTemplates(StubTrainer):
        def save_model(self, folder: str) -> None:
            super().save_model(folder)
            templates = Path(folder) / "additional_chat_templates"
            templates.mkdir()
            (templates / "tool.jinja").write_text("new")

    old = tmp_path / "additional_chat_templates"
    old.mkdir()
    (old / "old.jinja").write_text("old")
    save(WithTemplates(model), tmp_path)
    assert contents(old) == {"tool.jinja": b"new"}


class BrokenTrainer(StubTrainer):
    """Saves what ZeRO-3 saves when its parameters are not gathered: tensors of no size."""

    def save_model(self, folder: str) -> None:
        super().save_model(folder)
        save_file({"model.embed_tokens.weight": torch.zeros(0)}, Path(folder) / "model.safetensors")


class EmptyTrainer(StubTrainer):
    """Saves no weights at all."""

    def save_model(self, folder: str) -> None:
        super().save_model(folder)
        (Path(folder) / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("trainer", "message"), [(BrokenTrainer, "1 weights are empty"), (EmptyTrainer, "has no weights")]
)
def test_a_save_that_fails_its_check_leaves_the_old_model_untouched(
    trainer: type[StubTrainer], message: str, model: PreTrainedModel, tmp_path: Path
) -> None:
    save(StubTrainer(model, max_shard_size="100KB"), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        save(trainer(model), tmp_path)
    assert contents(tmp_path) == before


def test_other_ranks_publish_nothing(model: PreTrainedModel, tmp_path: Path) -> None:
    staging = tmp_path / ".saving"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes(b"rank 0 writes this")

    class OtherRank(RankGroup):
        def gather_objects(self, value: Any) -> list[Any]:
            return [None, value]

    class Silent:
        def save_model(self, folder: str) -> None:
            assert folder == str(staging)

    assert save_model(Silent(), tmp_path, OtherRank(Ranks(1, 2, 1, 2))) == []  # type: ignore[arg-type]
    assert (staging / "model.safetensors").exists()
