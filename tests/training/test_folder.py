"""Which checkpoints of a run stay, and which one it goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.checkpoint.unfinished import UNFINISHED
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.errors import CheckpointError, DataError, RecipeError, ZerokitError
from zerokit.staging import make_staging
from zerokit.training.checkpoint_writer import disk_space_problem, publish, seal
from zerokit.training.folder import OutputFolder, checkpoints, remove_old
from zerokit.training.identity import Identity
from zerokit.training.resume import check_resumed, find_resume, num_saving_ranks


@pytest.mark.parametrize(
    ("limit", "last", "best", "left"),
    [
        (None, 30, None, [2, 10, 20, 30]),
        (2, 30, None, [20, 30]),
        (2, 30, "out/checkpoint-2", [2, 30]),
        (1, 30, "out/checkpoint-2", [2, 30]),
        (0, 30, None, [2, 10, 20, 30]),
        (-1, 30, None, [2, 10, 20, 30]),
    ],
)
def test_the_last_whole_checkpoint_and_the_best_stay(
    limit: int | None, last: int, best: str | None, left: list[int], tmp_path: Path
) -> None:
    for number in (2, 10, 20, 30):
        (tmp_path / f"checkpoint-{number}").mkdir()
    (tmp_path / "checkpoint-50").touch()  # a file is none
    remove_old(tmp_path, limit, last=tmp_path / f"checkpoint-{last}", best=best)
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{number}" for number in left]


@pytest.mark.parametrize("name", ["run.lock", "run.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "read-only"])
def test_what_is_in_the_way_of_a_file_is_refused_before_training(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "read-only": lambda: path.touch(0o444)}[kind]()
    problem = "is read-only" if kind == "read-only" else "is not a regular file"
    for output in (OutputFolder(tmp_path, "there", True, None), OutputFolder(tmp_path, "there", False, None)):
        with pytest.raises(RecipeError, match=f"^there: '{path}' {problem}, and the run writes"):
            output._check_earlier()


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "config.json", "tokenizer_config.json"])
def test_a_folder_that_a_model_would_replace_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RecipeError, match="is not a regular file"):
        OutputFolder(tmp_path, "there", force=True, resume=None)._check_earlier()


@pytest.mark.parametrize("name", ["checkpoint-7", "earlier", ".unfinished", ".saving", "runs"])
def test_a_file_where_the_run_makes_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RecipeError, match="is not a folder, and the run makes a folder of that name"):
        OutputFolder(tmp_path, "there", force=True, resume=None)._check_earlier()


def test_other_names_and_the_files_of_an_earlier_run_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes", "checkpoint-best", "modeling"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch(0o444)
    for name in ("run.json", "metrics.jsonl", "model.safetensors"):
        (tmp_path / name).touch()
    OutputFolder(tmp_path, "there", force=True, resume=None)._check_earlier()


def of_a_run(folder: Path, number: int, *, sealed: bool = True) -> Path:
    """A checkpoint-N, of files that are empty."""
    checkpoint = folder / f"checkpoint-{number}"
    states = checkpoint / f"global_step{number}"
    states.mkdir(parents=True)
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (states / name).touch()
    (checkpoint / "latest").write_text(states.name)
    (checkpoint / "trainer_state.json").write_text("{}")
    if sealed:
        (checkpoint / "SHA256SUMS").touch()
    return checkpoint


def last_of(folder: Path, group: RankGroup | None = None) -> Path | None:
    return find(folder, True, group)


def find(folder: Path, resume: bool | str, group: RankGroup | None = None) -> Path | None:
    resolved: Any = SimpleNamespace(training={"resume_from_checkpoint": resume, "output_dir": str(folder)})
    loaded: Any = SimpleNamespace(where=lambda *names: ".".join(names))
    return find_resume(group or RankGroup(Ranks()), resolved, loaded)


def test_a_run_that_goes_back_has_its_own_last_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [of_a_run(tmp_path, number) for number in (2, 10, 20, 30)]
    with ExitStack() as held:
        OutputFolder(tmp_path, "there", force=False, resume=folders[1])._take(held, "0123abcd")
    aside = tmp_path / "earlier" / "0123abcd"
    assert capsys.readouterr().err == f"2 checkpoints behind checkpoint-10 set aside in {aside}\n"
    assert checkpoints(aside) == [aside / "checkpoint-20", aside / "checkpoint-30"]
    assert last_of(tmp_path) == folders[1]
    saved = of_a_run(tmp_path, 15)
    assert last_of(tmp_path) == checkpoints(tmp_path)[-1] == saved


@pytest.mark.parametrize("tag", ["a" * 300, "a/" * 100 + "b" * 300, "\0", "b" * 100_000])
def test_a_damaged_checkpoint_is_passed_over_by_name(
    tag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = of_a_run(tmp_path, 1), of_a_run(tmp_path, 2)
    (damaged / "latest").write_text(tag)
    assert last_of(tmp_path) == whole
    assert f"{damaged} is not whole (" in capsys.readouterr().err
    (whole / "latest").unlink()
    with pytest.raises(CheckpointError, match="Continue from an earlier"):
        last_of(tmp_path)


@pytest.mark.parametrize("latest", ["incomplete", "changed"])
def test_the_newest_complete_checkpoint_before_a_damaged_one_is_named(latest: str, tmp_path: Path) -> None:
    whole, _, damaged = of_a_run(tmp_path, 1), of_a_run(tmp_path, 2, sealed=False), of_a_run(tmp_path, 10)
    (damaged / "SHA256SUMS").write_text(f"{'0' * 64}  latest\n")
    if latest == "incomplete":
        (damaged / "latest").unlink()
    looks: dict[str, Callable[[], object]] = {
        "incomplete": lambda: find(tmp_path, str(damaged)),
        "changed": lambda: check_resumed(RankGroup(Ranks()), damaged, verify=True, trusted=False),
    }
    with pytest.raises(CheckpointError, match=f"Continue with --resume {whole}(, or|$)"):
        looks[latest]()


def test_a_linked_checkpoint_is_the_last_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, archive = tmp_path / "run", tmp_path / "archive"
    of_a_run(run, 25)
    of_a_run(archive, 30)
    link = run / "checkpoint-30"
    link.symlink_to(archive / "checkpoint-30")
    for resume in (last_of(run), archive / "checkpoint-30"):
        assert resume is not None
        assert resume.samefile(link)
        of_a_run(run, 35)
        with ExitStack() as held:
            OutputFolder(run, "there", force=False, resume=resume)._take(held, "0123abcd")
        assert [path.name for path in checkpoints(run)] == ["checkpoint-25", "checkpoint-30"]
    assert capsys.readouterr().err.count("1 checkpoint behind checkpoint-30 set aside") == 2


@pytest.mark.parametrize("name", ["checkpoint-30", "checkpoint-30/global_step30/extra.pt"])
def test_no_older_checkpoint_is_used_because_of_a_link(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    of_a_run(run, 25)
    link = run / name
    if name == "checkpoint-30":
        link.symlink_to(tmp_path / "lost")
    else:
        of_a_run(run, 30)
        (tmp_path / "extra.pt").touch()
        link.symlink_to(tmp_path / "extra.pt")
    with pytest.raises(CheckpointError, match=r"is a link to a missing folder|leads out of its folder") as caught:
        last_of(run)
    assert caught.value.where == str(link)
    link.unlink()
    last = last_of(run)
    assert last is not None
    assert last.name == ("checkpoint-25" if name == "checkpoint-30" else "checkpoint-30")


def test_a_checkpoint_without_checksums_is_the_last_only_where_none_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = of_a_run(tmp_path, 20, sealed=False)
    assert last_of(tmp_path) == later
    earlier = of_a_run(tmp_path, 10)
    assert last_of(tmp_path) == earlier
    said = f"{later} is not whole (lacks SHA256SUMS): the run continues from {earlier}\n"
    assert capsys.readouterr().err == said
    (earlier / "latest").unlink()
    assert last_of(tmp_path) == later


class Second(RankGroup):
    """Rank 1 of a run, on a machine of its own."""

    def __init__(self, of_first: Path) -> None:
        super().__init__(Ranks(1, 2, 0, 1))
        self.of_first = of_first
        """What rank 0 has chosen."""

    def broadcast_object(self, value: Any) -> Any:
        return self.of_first

    def gather_objects(self, value: Any) -> list[Any]:
        first = None if value is None or isinstance(value, Exception) else ("first", *value[1:])
        return [first, value]


def test_rank_0_chooses_the_checkpoint_to_resume_from_and_reports_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier, later = of_a_run(tmp_path, 1), of_a_run(tmp_path, 2)
    assert last_of(tmp_path, Second(earlier)) == earlier  # rank 0 does not see the later one yet
    (earlier / "latest").rename(tmp_path / "aside")
    (later / "latest").unlink()
    with pytest.raises(CheckpointError, match="rank 0 resumes from it, and rank 1 does not see it whole: lac"):
        last_of(tmp_path, Second(earlier))
    unseen = tmp_path / "checkpoint-3"
    with pytest.raises(CheckpointError, match=f"^{unseen}: rank 0 .* does not exist"):
        last_of(tmp_path, Second(unseen))
    assert capsys.readouterr().err == ""


def test_machines_with_different_checkpoints_of_one_name_do_not_resume(tmp_path: Path) -> None:
    class Different(Second):
        def gather_objects(self, value: Any) -> list[Any]:
            return [("first", ["another digest"]) if isinstance(value, tuple) else None, value]

    checkpoint = of_a_run(tmp_path, 1)
    with pytest.raises(DataError, match=f"^{checkpoint}: the files have different content on first and "):
        last_of(tmp_path, Different(checkpoint))


class Alone(RankGroup):
    """The first of several ranks, which hears of no other."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        return value


def alone(**ranks: int) -> RankGroup:
    return Alone(Ranks(**ranks))


def test_a_checkpoint_has_its_name_only_when_all_of_it_is_there(tmp_path: Path) -> None:
    written, saved = tmp_path / UNFINISHED / "checkpoint-5", tmp_path / "checkpoint-5"
    of_a_run(make_staging(tmp_path / UNFINISHED), 5, sealed=False)
    (written / "latest").unlink()
    (written / "latest").symlink_to("gone")  # such as on a server that has lost it
    group = alone(world_size=2)
    group.gather_objects = lambda value: [value, value]
    group.broadcast_object = lambda value: ["latest"] if isinstance(value, list) else value
    problem = publish(group, written, saved)
    assert problem is not None
    assert problem.endswith("training.output_dir must be on a disk that all machines share")
    assert not saved.exists()

    (written / "latest").unlink()
    (written / "latest").write_text("global_step5")
    assert publish(alone(), written, saved) is None
    assert (saved / "SHA256SUMS").read_text().count("\n") == 4
    remove_old(tmp_path, None, last=saved, best=None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_a_checkpoint_is_removed_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (2, 10):
        of_a_run(tmp_path, number)
    monkeypatch.setattr("zerokit.staging.shutil.rmtree", lambda *_, **__: None)  # killed
    remove_old(tmp_path, 1, last=tmp_path / "checkpoint-10", best=None)
    assert checkpoints(tmp_path) == [tmp_path / "checkpoint-10"]
    monkeypatch.undo()
    with ExitStack() as held:
        OutputFolder(tmp_path, "there", force=True, resume=None)._take(held, "0123abcd")
    assert not (tmp_path / UNFINISHED).exists()


def test_a_checkpoint_whose_checksums_cannot_be_written_is_not_whole(tmp_path: Path) -> None:
    folder = of_a_run(tmp_path, 1, sealed=False)
    group = alone()
    assert seal(group, folder) is None
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").mkdir()
    assert "SHA256SUMS: is a folder" in (seal(group, folder) or "")


def test_a_machine_that_does_not_see_the_folder_is_named_as_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group: Any = alone(world_size=2)
    group.together = lambda action: action()
    output = OutputFolder(tmp_path / "out", "there", force=False, resume=None)
    with output.locked(group, "0123abcd"):
        assert capsys.readouterr().err == ""
    group.gather_objects = lambda value: [value, "other"]
    with output.locked(group, "0123abcd"):
        assert f"other does not see {tmp_path / 'out'}: " in capsys.readouterr().err


def test_a_disk_that_does_not_tell_its_size_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"total": 0, "free": 0}
    monkeypatch.setattr("zerokit.training.checkpoint_writer.shutil.disk_usage", lambda _: SimpleNamespace(**told))
    assert disk_space_problem(Path(), 1) is None
    told["total"] = 1
    assert disk_space_problem(Path(), 1) is not None


def test_the_parts_of_another_step_in_a_checkpoint_are_not_counted(tmp_path: Path) -> None:
    """Files of two steps have the same names: those count that are in the folder that latest names."""
    checkpoint = of_a_run(tmp_path, 30)
    earlier = checkpoint / "global_step20"
    earlier.mkdir()
    for rank in range(2):
        (earlier / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    assert num_saving_ranks(checkpoint) == 1
    (checkpoint / "global_step30/zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="lacks the states of the optimizer of each rank"):
        last_of(tmp_path)


def test_a_lock_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "keys").write_text("ssh-rsa")
    for plant in (Path.symlink_to, Path.hardlink_to):
        plant(tmp_path / "out/run.lock", tmp_path / "keys")
        with ExitStack() as held, pytest.raises(ZerokitError, match=r"out/run\.lock: is "):
            OutputFolder(tmp_path / "out", "there", force=False, resume=None)._take(held, "0123abcd")
        assert (tmp_path / "keys").read_text() == "ssh-rsa"
        (tmp_path / "out/run.lock").unlink()


@pytest.mark.parametrize("run_id", ["../../x", "..", "", "/tmp/x", 7, None])
def test_an_id_that_is_not_hexadecimal_names_no_folder(run_id: object, tmp_path: Path) -> None:
    checkpoint = of_a_run(tmp_path / "parent/run", 1)
    identity = {field.name: {} for field in fields(Identity)} | {"run_id": run_id}
    (checkpoint / "zerokit_run.json").write_text(json.dumps(identity))
    output = OutputFolder(tmp_path / "parent/run", "there", force=True, resume=None)
    with ExitStack() as held, pytest.raises(CheckpointError, match="is not hexadecimal"):
        output._take(held, "0123abcd")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == [
        "checkpoint-1",
        "global_step1",
        "parent",
        "run",
    ]
