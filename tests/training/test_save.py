"""Saving: the new model or the old one, and nothing between."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import ONE_STEP_RECIPE
from tests.training.test_records import REPORT
from zerokit.checkpoint.source import check_checkpoint
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import CheckpointError, RecipeError, RunError, ZerokitError
from zerokit.recipe import load_recipe
from zerokit.staging import make_staging
from zerokit.training.checkpoint_writer import CheckpointWriter, DiskProblems
from zerokit.training.folder import OutputFolder
from zerokit.training.save import publish_model, settle

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class WithWriter:
    def __init__(self) -> None:
        self.checkpoints = CheckpointWriter(RankGroup(Ranks()), Path("out"), limit=None, is_writer=True)


class StubTrainer(WithWriter):
    """Saves what it is given, as the Trainer does."""

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def save_model(self, folder: str) -> None:
        assert not Path(folder).exists()  # nothing of an earlier save is mixed in
        make_staging(Path(folder))
        self.model.save_pretrained(folder, **self.options)
        (Path(folder) / "training_args.bin").write_bytes(b"a pickle")


def save(trainer: Any, folder: Path) -> list[Path]:
    return publish_model(trainer, OutputFolder(folder, "w", False, None), RankGroup(Ranks()), REPORT)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_what_is_saved_can_be_started_from(model: PreTrainedModel, tmp_path: Path) -> None:
    files = save(StubTrainer(model), tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    model_files = {"config.json", "generation_config.json", "model.safetensors"}
    assert {file.name for file in files} == {*model_files, "run.json"}
    assert json.loads((tmp_path / "run.json").read_text())["files"] == sorted([*model_files, "run.json"])
    check_checkpoint(tmp_path, where="w")
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(weight, saved[name]) for name, weight in model.state_dict().items())


def test_a_rehearsal_saves_without_the_weights_that_it_does_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suppressed(WithWriter):
        def save_model(self, folder: str) -> None:
            make_staging(Path(folder))

    with pytest.raises(CheckpointError, match="has no weights"):
        save(Suppressed(), tmp_path)
    monkeypatch.setenv("ZEROKIT_REHEARSAL", "1")
    assert [file.name for file in save(Suppressed(), tmp_path)] == ["run.json"]


@pytest.mark.parametrize(("first", "second"), [("100KB", "5GB"), ("5GB", "100KB"), ("100KB", "200KB")])
def test_a_new_model_replaces_all_files_of_the_old_one(
    first: str, second: str, model: PreTrainedModel, tmp_path: Path
) -> None:
    save(StubTrainer(model, max_shard_size=first), tmp_path)
    (tmp_path / "metrics.jsonl").write_text("kept")
    files = save(StubTrainer(model, max_shard_size=second), tmp_path)
    assert set(files) | {tmp_path / "metrics.jsonl"} == set(tmp_path.iterdir())
    check_checkpoint(tmp_path, where="w")


def test_what_a_crash_left_in_the_staging_folder_is_not_published(model: PreTrainedModel, tmp_path: Path) -> None:
    make_staging(tmp_path / ".saving")
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
    save(StubTrainer(model), tmp_path)
    assert not old.exists()  # it was of the earlier model


class Killed(BaseException):
    """Ends a process between two changes of its folder."""


STEPS = ((Path, "replace"), (Path, "symlink_to"), (Path, "hardlink_to"), (Path, "unlink"), (shutil, "rmtree"))


def killed_after(number: int, action: Callable[[], object], patch: pytest.MonkeyPatch) -> bool:
    """Run `action` up to its `number`-th change of the folder; whether that was before its end."""
    left = number

    def counted(original: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return original(*args, **kwargs)

        return change

    with patch.context() as patched:
        for owner, name in STEPS:
            patched.setattr(owner, name, counted(getattr(owner, name)))
        try:
            action()
        except Killed:
            return True
    return False


def seen(folder: Path) -> dict[str, bytes]:
    """The model that whoever loads the folder finds."""
    return {name: data for name, data in contents(folder).items() if not name.startswith(".")}


class CopyTrainer(WithWriter):
    """Saves the files of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def save_model(self, folder: str) -> None:
        Path(folder).parent.mkdir(exist_ok=True)
        shutil.copytree(self.folder, make_staging(Path(folder)), dirs_exist_ok=True)


@pytest.mark.parametrize(("first", "second"), [("100KB", "5GB"), ("5GB", "100KB")])
def test_a_kill_leaves_the_old_model_or_the_new_one(
    first: str, second: str, model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy.deepcopy(model)
    other.config.rope_theta = 5.0
    other.lm_head.weight.data += 1
    for name, each, size in (("old", model, first), ("new", other, second)):
        each.save_pretrained(tmp_path / name, max_shard_size=size)
        save(CopyTrainer(tmp_path / name), tmp_path / f"saved-{name}")
    old, new = seen(tmp_path / "saved-old"), seen(tmp_path / "saved-new")
    found = []
    for number in itertools.count():
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "saved-old", folder)
        trainer = CopyTrainer(tmp_path / "new")
        was_killed = killed_after(number, lambda to=folder, by=trainer: save(by, to), monkeypatch)
        found.append(seen(folder))
        assert found[-1] in (old, new)
        settle(folder)  # as the next run does
        assert contents(folder) == seen(folder) == found[-1]
        assert not [path for path in folder.iterdir() if path.is_symlink()]
        if not was_killed:
            break
    assert len(found) > 15
    assert found == sorted(found, key=lambda model: model == new)  # it becomes the new one, once


def test_a_file_system_without_links_gets_the_model_file_by_file(
    model: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    save(StubTrainer(model, max_shard_size="100KB"), tmp_path)
    files = save(StubTrainer(model), tmp_path)
    assert sorted(files) == sorted(tmp_path.iterdir())
    check_checkpoint(tmp_path, where="w")


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


class OtherRank(RankGroup):
    """The second of two ranks; rank 0 has these problems."""

    problems: tuple[str, ...] = ()

    def gather_objects(self, value: Any) -> list[Any]:
        return [None, value]

    def broadcast_object(self, value: Any) -> Any:
        return self.problems


@pytest.mark.parametrize("problems", [(), ("Input/output error",)])
def test_other_ranks_publish_nothing_and_save_with_rank_0(problems: tuple[str, ...], tmp_path: Path) -> None:
    class Saving(WithWriter):
        def save_model(self, folder: str) -> None:
            folders.append(folder)

    folders: list[str] = []
    (tmp_path / "out" / ".saving").mkdir(parents=True)
    output = OutputFolder(tmp_path / "out", "w", False, None)
    trainer: Any = Saving()
    group = OtherRank(Ranks(1, 2, 1, 2))
    group.problems = problems
    assert publish_model(trainer, output, group, REPORT) == []
    assert folders == ([] if problems else [str(tmp_path / "out" / ".saving")])
    assert (tmp_path / "out" / ".saving").is_dir(), "rank 0 writes into it"


def test_what_an_ended_resume_has_left_is_removed(tmp_path: Path) -> None:
    make_staging(tmp_path / ".divided")
    for name in (".divided/checkpoint-3-on-2-ranks", ".mine", "checkpoint-3"):
        (tmp_path / name).mkdir()
    output = OutputFolder(tmp_path, "w", False, tmp_path / "checkpoint-3")
    with output.locked(RankGroup(Ranks()), "1"):
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {".mine", "checkpoint-3"}


def test_a_folder_that_fails_before_the_save_is_left_as_it_was(model: PreTrainedModel, tmp_path: Path) -> None:
    """As a network disk with I/O errors. The ranks agree whether to save before the model's collectives."""
    output = OutputFolder(tmp_path / "out", "w", False, None)
    output.path.mkdir()
    broken = patch("zerokit.training.save.settle", side_effect=OSError(5, "Input/output error", "out/.model"))
    with broken, pytest.raises(RunError, match="cannot be saved: Input/output error") as caught:
        publish_model(StubTrainer(model), output, RankGroup(Ranks()), REPORT)  # type: ignore[arg-type]
    assert "Make room" in str(caught.value)
    assert not list(output.path.iterdir())


@pytest.mark.parametrize("name", ["..model.link", ".model.link", ".link"])
def test_a_save_needs_no_name_that_is_not_checked_before_training(
    name: str, model: PreTrainedModel, tmp_path: Path
) -> None:
    (tmp_path / name / "mine").mkdir(parents=True)
    save(StubTrainer(model), tmp_path)
    save(StubTrainer(model), tmp_path)
    check_checkpoint(tmp_path, where="w")
    assert (tmp_path / name / "mine").is_dir()


def mine(path: Path, kind: str) -> None:
    """Make a file, a folder or a link that is not zerokit's."""
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "mine").touch()
    else:
        path.symlink_to("elsewhere")


def is_mine(path: Path, kind: str) -> bool:
    if kind == "file":
        return path.read_text() == "mine"
    return (path / "mine").is_file() if kind == "folder" else str(path.readlink()) == "elsewhere"


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_has_the_name_of_the_link_to_the_model_is_refused_before_training(kind: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE)
    output = OutputFolder(tmp_path / "out", "w", False, None)
    output.path.mkdir()
    mine(output.path / ".model", kind)
    with pytest.raises(ZerokitError, match="needs this name for a link") as caught:
        output.check(load_recipe(tmp_path / "recipe.yaml"))
    assert caught.value.where == str(output.path / ".model")
    assert not caught.value.others


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_gets_that_name_during_training_stays_and_the_model_is_saved(
    kind: str, model: PreTrainedModel, tmp_path: Path
) -> None:
    mine(tmp_path / ".model", kind)
    save(StubTrainer(model, max_shard_size="100KB"), tmp_path)
    files = save(StubTrainer(model), tmp_path)
    assert {*files, tmp_path / ".model"} == set(tmp_path.iterdir())
    check_checkpoint(tmp_path, where="w")
    assert is_mine(tmp_path / ".model", kind)


def test_no_write_of_deepspeed_ends_its_save_where_other_ranks_wait(tmp_path: Path) -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    engine: Any = DeepSpeedEngine.__new__(DeepSpeedEngine)
    torch.nn.Module.__init__(engine)
    engine.checkpoint_engine = SimpleNamespace(save=fail, makedirs=fail)
    problems = DiskProblems()
    problems.collect_from(engine)
    engine.checkpoint_engine.save({}, "file")
    engine.checkpoint_engine.makedirs("folder")
    engine._copy_recovery_script(str(tmp_path / "gone"))
    assert problems == ["No space left on device"] * 2 + ["No such file or directory"]


def test_a_link_to_nothing_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE)
    (tmp_path / "out").symlink_to(tmp_path / "away" / "out")
    with pytest.raises(RecipeError, match="cannot write into"):
        OutputFolder(tmp_path / "out", "w", False, None).check(load_recipe(tmp_path / "recipe.yaml"))


def test_a_link_that_is_not_of_a_save_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home/docs").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    for name in (".model", ".saving", ".replaced"):
        (tmp_path / "run" / name).symlink_to("../home")
        settle(tmp_path / "run")
        assert (tmp_path / "home/docs").is_dir()


def test_a_report_names_no_folder_above_its_own(model: PreTrainedModel, tmp_path: Path) -> None:
    run = tmp_path / "parent/run"
    run.mkdir(parents=True)
    (tmp_path / "parent/thesis.tex").touch()
    (run / "run.json").write_text(json.dumps({"files": ["..", ".", "", "../thesis.tex", "/tmp"]}))
    save(StubTrainer(model), run)
    assert (tmp_path / "parent/thesis.tex").exists()
    check_checkpoint(run, where="w")


def test_all_names_that_lead_elsewhere_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE + "  report_to: [tensorboard]\n")
    (tmp_path / "out").mkdir()
    names = (".saving", ".replaced", ".unfinished", ".divided", "run.lock", "earlier", "runs")
    for name in names:
        (tmp_path / "out" / name).symlink_to(tmp_path / ("missing" if name == "runs" else "."))
    output = OutputFolder(tmp_path / "out", "w", False, None)
    with pytest.raises(ZerokitError) as caught, patch("zerokit.training.trackers.find_spec"):
        output.check(load_recipe(tmp_path / "recipe.yaml"))
    errors = [caught.value, *caught.value.others]
    assert [Path(str(error.where)).name for error in errors] == list(names)
    assert {error.message for error in errors} == {"is a link, which zerokit does not follow here"}


def test_tensorboard_may_write_into_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(ONE_STEP_RECIPE + "  report_to: [tensorboard, codecarbon]\n")
    for folder in ("out", "shared"):
        (tmp_path / folder).mkdir()
    (tmp_path / "out/runs").symlink_to(tmp_path / "shared")
    output = OutputFolder(tmp_path / "out", "w", False, None)
    with patch("zerokit.training.trackers.find_spec"):
        loaded = load_recipe(tmp_path / "recipe.yaml")
        output.check(loaded)
        (tmp_path / "out/emissions.csv").symlink_to(tmp_path / "shared")
        with pytest.raises(RecipeError, match=r"emissions\.csv' is not a regular file"):
            output.check(loaded)
