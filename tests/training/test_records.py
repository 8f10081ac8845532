"""What a run leaves behind for programs: metrics.jsonl and run.json."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import processes
from zerokit.documents import parse_json
from zerokit.reporting.losses import read_losses
from zerokit.training.progress import RunProgress
from zerokit.training.report import METRICS_FILE, REPORT_FILE, RunReport, git_commit
from zerokit.training.throughput import Throughput

INFINITE = float("inf")
NAN = float("nan")


def state(step: int, *, main: bool = True, tokens: int = 0) -> Any:
    return SimpleNamespace(is_world_process_zero=main, global_step=step, max_steps=4, num_input_tokens_seen=tokens)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, each strict JSON."""
    return [parse_json(line).data for line in (folder / METRICS_FILE).read_text().splitlines()]


def drive(callback: RunProgress, logs: dict[int, dict[str, Any]], *, start: int = 0, main: bool = True) -> None:
    unused: Any = None
    callback.on_train_begin(unused, state(start, main=main), unused)
    for step, entry in logs.items():
        callback.on_step_end(unused, state(step, main=main), unused)
        callback.on_log(unused, state(step, main=main), unused, logs=entry)
    callback.stop()


def test_each_log_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(1000, 0.25)
    monkeypatch.setattr("zerokit.training.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    drive(RunProgress(tmp_path / "new"), {1: {"loss": 2.5, "learning_rate": 1e-3}, 2: {"eval_loss": 2.25}})
    first, second, third = lines(tmp_path / "new")
    assert (first["max_steps"], first["step"]) == (4, 0)
    assert (second["step"], second["loss"], second["learning_rate"]) == (1, 2.5, 1e-3)
    assert (third["step"], third["eval_loss"]) == (2, 2.25)
    times = [line["elapsed_seconds"] for line in (first, second, third)]
    assert times == sorted({*times})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == ["step 1/4  loss 2.5000", "step 2/4  eval_loss 2.2500"]


def test_steps_take_as_long_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for main in (True, False):
        clock = itertools.count(1000)
        monkeypatch.setattr("zerokit.training.progress.time", SimpleNamespace(monotonic=lambda c=clock: next(c)))
        throughput = Throughput()
        drive(RunProgress(tmp_path, throughput=throughput), {1: {"eval_loss": 2.5}}, main=main)
        assert throughput.step_seconds is not None
        assert throughput.step_seconds < 10


def test_a_log_tells_the_speed_of_the_steps_since_the_last_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("zerokit.training.progress.time", SimpleNamespace(monotonic=lambda: now))
    throughput = Throughput(operations_per_token=10, flops=1000)
    memory: Any = SimpleNamespace(read=lambda: 2**20)
    callback, unused = RunProgress(tmp_path, throughput=throughput, memory=memory), None
    callback.on_train_begin(unused, state(0), unused)
    for step, seconds in ((1, 4.0), (2, 2.0)):
        now += seconds
        callback.on_step_end(unused, state(step, tokens=60 * step), unused)
        callback.on_log(unused, state(step, tokens=60 * step), unused, logs={"loss": 1.0})
        now += 100  # an evaluation
        callback.on_evaluate(unused, state(step), unused)
    callback.stop()
    names = ("tokens_per_second", "mfu", "peak_memory_bytes")
    told = [tuple(line[name] for name in names) for line in lines(tmp_path)[1:]]
    assert told == [(15, 0.15, 2**20), (30, 0.3, 2**20)]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step 1/4  loss 1.0000  15 tokens/s  MFU 15.0%  peak 1.00 MiB  12.0 s left"
    assert second == "step 2/4  loss 1.0000  30 tokens/s  MFU 30.0%  peak 1.00 MiB  1 min 46 s left"
    assert throughput.step_seconds == 2


def test_the_curve_has_a_line_for_each_loss(tmp_path: Path) -> None:
    drive(RunProgress(tmp_path), {1: {"loss": 3.0}, 2: {"loss": NAN}, 3: {"loss": 2.0}, 4: {"eval_loss": 1.0}})
    assert read_losses(tmp_path / METRICS_FILE) == {"training": [(1, 3), (3, 2)], "held-out": [(4, 1)]}
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('5\n{"loss": 9}\n{"step": 5, "lo')  # killed
    drive(RunProgress(tmp_path), {2: {"loss": 2.5}}, start=1)
    assert read_losses(tmp_path / METRICS_FILE) == {"training": [(1, 3), (2, 2.5)]}


def test_the_curve_of_a_long_run_keeps_its_ends(tmp_path: Path) -> None:
    values = [float(abs(3000 - step)) for step in range(8000)]
    lines = [json.dumps({"step": step, "loss": value}) for step, value in enumerate(values)]
    (tmp_path / METRICS_FILE).write_text("\n".join(lines))
    known = read_losses(tmp_path / METRICS_FILE)["training"]
    assert known == sorted(known)
    assert len(known) <= 1000
    assert {(3000, 0.0), (0, 3000.0), (7999, 4999.0)} <= set(known)


def test_the_commit_is_that_of_the_folder_with_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    (tmp_path / "file").touch()
    for words in (("init", "-q"), ("add", "file"), (*own, "commit", "-qm", "one")):
        subprocess.run(["git", *words], check=True)
    commit = git_commit()
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "file").write_text("changed")
    assert git_commit() == f"{commit}-dirty"
    os.utime(tmp_path / "file", (0, 0))
    (tmp_path / "file").write_text("")
    assert git_commit() == commit, "the same content at another time is no change"
    (tmp_path / "file").chmod(0o755)
    assert git_commit() == f"{commit}-dirty"
    subprocess.run(["git", "config", "core.fileMode", "false"], check=True)
    assert git_commit() == commit, "as on a file system without modes"


def _git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    return processes.checked(["git", *own, *words], cwd=folder)


_HOSTILE_CONFIG = {
    **dict.fromkeys(
        ("core.fsmonitor", "core.editor", "core.pager", "core.sshCommand", "core.askPass", "core.gitProxy"), ""
    ),
    **dict.fromkeys(("core.alternateRefsCommand", "diff.external", "credential.helper", "gpg.program"), ""),
    **{f"filter.x.{kind}": "" for kind in ("clean", "smudge", "process")},
    **{f"{kind}.x.{key}": "" for kind, key in (("diff", "command"), ("diff", "textconv"), ("merge", "driver"))},
    **{f"pager.{command}": "" for command in ("rev-parse", "config", "diff-index", "update-index")},
    **{f"alias.{command}": "!" for command in ("rev-parse", "config", "diff-index", "update-index", "describe")},
    **{"remote.origin.url": "ext::", "remote.origin.uploadpack": ""},
}
"""Keys of git's config that name a program, and what is written before it."""


def _let_run(git_folder: Path, program: Path) -> None:
    """Have the config and the hooks of a repository name a program wherever they can."""
    settings = {key: f"{before}{program}" for key, before in _HOSTILE_CONFIG.items()}
    settings |= {
        "core.eol": f"lf\nfilter.x.clean={program}",
        "filter.x.required": "true",
        "remote.origin.promisor": "true",
    }
    settings |= {"extensions.partialClone": "origin", "core.repositoryFormatVersion": "1"}
    for key, value in settings.items():
        _git(git_folder.parent, "config", "--file", str(git_folder / "config"), key, value)
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "post-checkout"):
        (git_folder / "hooks").mkdir(exist_ok=True)
        (git_folder / "hooks" / hook).unlink(missing_ok=True)
        (git_folder / "hooks" / hook).symlink_to(program)


@pytest.mark.parametrize("kind", ["folder", "worktree", "file", "incomplete", "included"])
def test_no_program_runs_that_a_repository_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\ncat\n')
    program.chmod(0o755)
    inner, folder = tmp_path / "inner", tmp_path / "folder"
    for made in (inner, folder):
        made.mkdir()
        _git(made, "init", "-q")
        (made / "file").write_text("text")
        (made / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
        _git(made, "add", ".")
        _git(made, "commit", "-qm", "one")
    _git(folder, "submodule", "--quiet", "add", str(inner), "sub")
    _git(folder, "commit", "-qm", "two")
    git_folder = folder / ".git"
    if kind == "worktree":
        _git(folder, "worktree", "add", "-q", str(tmp_path / "other"))
        folder = tmp_path / "other"
    if kind == "file":
        git_folder = git_folder.rename(tmp_path / "elsewhere")
        (folder / ".git").write_text(f"gitdir: {git_folder}\n")
        (folder / "sub" / ".git").write_text(f"gitdir: {git_folder / 'modules' / 'sub'}\n")
        sub_config = str(git_folder / "modules" / "sub" / "config")
        _git(tmp_path, "config", "--file", sub_config, "core.worktree", str(folder / "sub"))
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if kind == "incomplete":
        _git(folder, "gc", "-q", "--prune=now")
        for pack in (git_folder / "objects" / "pack").iterdir():
            pack.unlink()
    _let_run(git_folder, program)
    if kind == "included":
        (git_folder / "config").rename(git_folder / "more")
        (git_folder / "config").write_text(f'[includeIf "gitdir:{git_folder}"]\n\tpath = {git_folder}/more\n')
    if (folder / "sub" / "file").exists():
        _let_run(git_folder / "modules" / "sub", program)
        (folder / "sub" / "file").write_text("changed")
    os.utime(folder / "file", (0, 0))
    subprocess.run(["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True)
    assert ran.exists(), "git itself runs none of them"
    ran.unlink()
    monkeypatch.chdir(folder)
    assert git_commit() == commit
    if kind != "incomplete":
        (folder / "file").write_text("changed")
        assert git_commit() == f"{commit}-dirty"
    assert not ran.exists(), ran.read_text()


def test_a_loss_that_is_no_number_is_still_json(tmp_path: Path) -> None:
    drive(RunProgress(tmp_path), {1: {"loss": NAN, "grad_norm": INFINITE}})
    assert lines(tmp_path)[1].items() >= {"step": 1, "loss": None, "grad_norm": None}.items()


def test_a_new_run_begins_the_file_anew_and_a_resumed_one_continues_it(tmp_path: Path) -> None:
    drive(RunProgress(tmp_path), {1: {"loss": 3.0}})
    drive(RunProgress(tmp_path), {1: {"loss": 2.0}, 2: {"loss": 1.0}})
    assert [line.get("loss") for line in lines(tmp_path)] == [None, 2.0, 1.0]
    drive(RunProgress(tmp_path), {3: {"loss": 0.5}}, start=2)
    assert [line.get("loss") for line in lines(tmp_path)] == [None, 2.0, 1.0, None, 0.5]
    assert lines(tmp_path)[3]["step"] == 2


def test_other_ranks_write_and_print_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drive(RunProgress(tmp_path / "new"), {1: {"loss": 2.5}}, main=False)
    assert not (tmp_path / "new").exists()
    assert capsys.readouterr() == ("", "")


REPORT = RunReport(
    run_id="3f2a",
    zerokit_version="0",
    versions={"torch": "2.8.0"},
    git_commit=None,
    seed=42,
    data_seed=42,
    num_parameters=1,
    num_trainable_parameters=1,
    zero_stage=2,
    world_size=2,
    parallel={"data": 2, "sequence": 1, "tensor": 1},
    precision="bf16",
    device="cpu",
    num_train_examples=3,
    num_eval_examples=0,
    steps=4,
    resumed_from_step=0,
    train_seconds=1.5,
    tokens=100,
    tokens_per_second=66.7,
    step_seconds=0.3,
    mfu=None,
    loss_before=None,
    loss_after=NAN,
    metrics_before={},
    metrics_after={"accuracy": 0.5},
    train_loss=2.0,
    model_states_bytes=16,
    expected_peak_bytes=None,
    peak_memory_bytes=32,
    padding={"share": 0.1},
    recipe={"training": {"output_dir": Path("runs")}},
    ds_config={"zero_optimization": {"stage": 2}, "steps_per_print": INFINITE},
)


def test_the_report_is_strict_json_with_every_field(tmp_path: Path) -> None:
    file = REPORT.write(tmp_path)
    assert file == tmp_path / REPORT_FILE
    data = parse_json(file.read_text()).data
    assert data.keys() == RunReport.__dataclass_fields__.keys()
    assert data["loss_after"] is None
    assert data["ds_config"] == {"zero_optimization": {"stage": 2}, "steps_per_print": None}
    assert data["recipe"] == {"training": {"output_dir": "runs"}}


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_lines_are_added_to_the_file_of_the_run_alone(plant: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    drive(RunProgress(run), {1: {"loss": 3.0}})
    (run / METRICS_FILE).rename(tmp_path / METRICS_FILE)
    plant(run / METRICS_FILE, tmp_path / METRICS_FILE)
    before = (tmp_path / METRICS_FILE).read_bytes()
    drive(RunProgress(run), {2: {"loss": 2.0}}, start=1)
    assert (tmp_path / METRICS_FILE).read_bytes() == before
    # A second name of the file has what the run has written until now.
    assert [line["step"] for line in lines(run)] == ([1, 2] if plant is Path.symlink_to else [0, 1, 1, 2])
