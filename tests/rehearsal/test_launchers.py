"""What launchers give a script, and what a script compiles for a GPU or runs without a kernel for one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse
from tests.rehearsal.recordings import job
from zerokit.choices import Launcher
from zerokit.errors import LaunchError, ZerokitError
from zerokit.rehearsal.stand_ins.launcher_commands import LauncherCommand, launcher_command
from zerokit.rehearsal.worker import launchers
from zerokit.rehearsal.worker.launchers import check_module, threads_of_launcher

ACCELERATE_CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  offload_param_device: none
  zero3_init_flag: true
  gradient_accumulation_steps: 1
mixed_precision: bf16
machine_rank: 0
num_machines: 1
num_processes: 2
"""


def told(rehearsed: Rehearsed) -> dict[str, Any]:
    line = next(line for line in rehearsed.err.splitlines() if line.startswith("told "))
    found: dict[str, Any] = json.loads(line.removeprefix("told "))
    return found


def launched(cwd: Path, *options: object, rank: int = 0, train: bool = False) -> Rehearsed:
    words = ("--num-gpus", 16, "--rank", rank, "--format", "json", *options, SCRIPTS / "launched.py")
    return rehearse(*words, *(["--train"] if train else []), cwd=cwd, forked=True)


def test_a_module_that_cannot_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "run_by_m"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").touch()
    (package / "broken.py").write_text("import no_such_library")
    (package / "inside").mkdir()
    (package / "inside" / "__init__.py").write_text("import no_such_library")
    check_module("run_by_m.train")
    check_module("run_by_m.broken")
    for name, said in (
        ("run_by_m", "-m run_by_m: is a package without a module __main__"),
        ("run_by_m.tain", "-m run_by_m.tain: no such module"),
        ("run_by_m.train.py", "-m run_by_m.train.py: no such module"),
    ):
        with pytest.raises(ZerokitError, match=said):
            check_module(name)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        check_module("run_by_m.inside.train")


def test_torchrun_tells_a_rank_by_the_environment_alone(tmp_path: Path) -> None:
    found = told(launched(tmp_path, rank=9))
    assert found == {"argv": [], "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}


def test_deepspeed_tells_the_local_rank_before_all_other_arguments(tmp_path: Path) -> None:
    rehearsed = launched(tmp_path, "--launcher", "deepspeed", rank=15, train=True)
    assert told(rehearsed)["argv"] == ["--local_rank=7", "--train"]


def test_a_script_that_does_not_train_is_not_said_to_fit(tmp_path: Path) -> None:
    rehearsed = launched(tmp_path)
    assert (rehearsed.code, rehearsed.out) == (2, "")
    line = rehearsed.err.splitlines()[-1]
    assert "launched.py: the script ended without training" in line


def test_an_accelerate_config_brings_deepspeed_in(tmp_path: Path) -> None:
    config = tmp_path / "accelerate.yaml"
    config.write_text(ACCELERATE_CONFIG)
    rehearsed = launched(tmp_path, "--accelerate-config", config.name, train=True, rank=8)
    report = rehearsed.report
    found = told(rehearsed)
    assert found["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert found["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("8", "0", "16")
    zero = report["run"]["ds_config"]["zero_optimization"]
    assert (zero["stage"], zero["offload_optimizer"]["device"]) == (3, "cpu")
    assert report["steps"] == 2
    assert not any("no DeepSpeed engine" in line for line in report["warnings"])


def test_words_of_accelerate_launch_go_to_it(tmp_path: Path) -> None:
    """A ds_config's "auto" asks for a precision that accelerate takes in no file beside a ds_config's."""
    ds_config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": "auto"}}
    ds_config["zero_optimization"] = {"stage": 2}
    (tmp_path / "ds config.json").write_text(json.dumps(ds_config))
    words = "--mixed_precision bf16 --use_deepspeed --deepspeed_config_file 'ds config.json'"
    rehearsed = launched(tmp_path, "--accelerate-arguments", words, train=True)
    assert told(rehearsed)["ACCELERATE_MIXED_PRECISION"] == "bf16"
    found = rehearsed.report["run"]["ds_config"]
    assert (found["bf16"]["enabled"], found["zero_optimization"]["stage"]) == (True, 2)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--mixed bf61", "accelerate launch --mixed bf61: accelerate launch refuses this, as printed above"),
        ("--mixed_precision 'bf16", "--accelerate-arguments --mixed_precision 'bf16: No closing quotation"),
    ],
)
def test_words_that_accelerate_launch_does_not_know_are_one_line(tmp_path: Path, words: str, line: str) -> None:
    rehearsed = launched(tmp_path, "--accelerate-arguments", words)
    assert rehearsed.code == 2
    assert f"zerokit: error: {line}" in rehearsed.err


FIX_FILE, FIX_WORDS = "Fix it by accelerate config", "accelerate launch --help lists its options"
LAUNCH = "accelerate launch --no"


@pytest.mark.parametrize(
    ("file", "words", "raised", "where", "fix"),
    [
        ("a.yaml", ["--no"], SystemExit(2), LAUNCH, FIX_WORDS),
        (None, ["--no"], SystemExit(2), LAUNCH, FIX_WORDS),
        ("a.yaml", [], ValueError("wrong"), "a.yaml", FIX_FILE),
        (None, [], ValueError("wrong"), "--launcher accelerate", FIX_FILE),  # the user's default file
        (None, ["--no"], ValueError("wrong"), LAUNCH, FIX_WORDS),
        ("a.yaml", ["--no"], ValueError("wrong"), f"a.yaml with {LAUNCH}", f"{FIX_FILE}; {FIX_WORDS}"),
    ],
)
def test_what_accelerate_launch_refuses_is_told_of_what_it_was_given(
    file: str | None, words: list[str], raised: BaseException, where: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "_accelerate_environment", mock.Mock(side_effect=raised))
    asked = job(launcher="accelerate", accelerate_config=file, accelerate_arguments=words)
    with pytest.raises(LaunchError) as refused:
        launchers.prepare(asked)
    assert (refused.value.where, refused.value.hint) == (where, fix)


def test_a_script_that_trains_without_deepspeed_is_said_to(tmp_path: Path) -> None:
    report = launched(tmp_path, train=True).report
    assert report["steps"] == 2
    assert report["run"]["ds_config"] is None
    (said,) = (line for line in report["warnings"] if "no DeepSpeed engine was made" in line)
    assert said.endswith("plain torch optimizers")  # and DDP's gradients are summed over all GPUs


def test_an_accelerate_config_that_is_none_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "accelerate.yaml"
    config.write_text(ACCELERATE_CONFIG.replace("zero_stage: 3", "zero_sage: 3") + "wrong_key: 1\n")
    rehearsed = launched(tmp_path, "--accelerate-config", config)
    assert rehearsed.code == 2
    assert f"zerokit: error: {config}: accelerate launch refuses this" in rehearsed.err
    assert "wrong_key" in rehearsed.err.splitlines()[-1]


def test_what_no_rehearsal_can_run_is_named(tmp_path: Path) -> None:
    words = ("--num-gpus", 2, "--rank", 0, SCRIPTS / "broken.py", "cpu_only_op")
    rehearsed = rehearse(*words, cwd=tmp_path, forked=True)
    assert rehearsed.code == 2
    line = "NotImplementedError: Could not run 'broken::host_clip' with arguments from the 'CUDA' backend."
    assert line in rehearsed.err


# ---- which programs that a script starts are launchers, and what is said of them


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["torchrun", "--nproc_per_node=8", "train.py", "--lr", "1"],
            LauncherCommand("torchrun", ["--nproc_per_node=8"], ["train.py", "--lr", "1"]),
        ),
        (
            ["/env/bin/python3.11", "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"],
            LauncherCommand("deepspeed", ["--world_info=e30="], ["train.py"]),
        ),
        (
            "OMP_NUM_THREADS=1 accelerate launch --config_file zero3.yaml --module train.main --lr 1",
            LauncherCommand("accelerate", ["--config_file", "zero3.yaml"], ["-m", "train.main", "--lr", "1"]),
        ),
        (
            ["python", "-m", "accelerate.commands.accelerate_cli", "launch", "train.py"],
            LauncherCommand("accelerate", [], ["train.py"]),
        ),
        ([Path("/env/bin/deepspeed"), b"train.py"], LauncherCommand("deepspeed", [], ["train.py"])),
        (["accelerate", "config"], None),
        (["torchrun", "--version"], None),
        (["python", "-m", "torch.utils.collect_env"], None),
        (["git", "commit", "-m", "torchrun train.py"], None),
        ("echo 'unbalanced", None),
        ([], None),
        (None, None),
    ],
)
def test_launchers_are_known_by_their_programs_and_modules(command: Any, expected: LauncherCommand | None) -> None:
    assert launcher_command(command) == expected


def test_a_script_that_starts_a_launcher_is_told_what_to_rehearse(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import subprocess, sys\n"
        "words = '-m deepspeed.launcher.launch --world_info=e30= train.py --deepspeed zero2.json'.split()\n"
        "subprocess.run([sys.executable, *words])\n"
    )
    done = rehearse("--num-gpus", 2, "run.py", cwd=tmp_path, forked=True)
    assert done.code == 2
    assert "run.py:3: the script has deepspeed start its ranks. Rehearse what that starts: " in done.err
    assert "zerokit rehearse --num-gpus 2 --launcher deepspeed train.py --deepspeed zero2.json" in done.err


# ---- threads for CPU work


@pytest.mark.parametrize(
    ("launcher", "local_ranks", "told", "threads"),
    [
        ("torchrun", 8, None, 1),
        ("torchrun", 1, None, None),
        ("deepspeed", 8, None, None),
        ("torchrun", 8, "12", 12),
        ("deepspeed", 8, "4,2", 4),
        # What accelerate sets, in its variables.
        ("accelerate", 8, "1", 1),
        ("torchrun", 8, "many", 1),
    ],
)
def test_launchers_leave_a_rank_so_many_threads(
    launcher: Launcher, local_ranks: int, told: str | None, threads: int | None
) -> None:
    environment = {} if told is None else {"OMP_NUM_THREADS": told}
    assert threads_of_launcher(launcher, local_ranks, environment) == threads


@pytest.mark.parametrize(("launcher", "threads"), [("torchrun", 1), ("deepspeed", None), ("accelerate", 6)])
def test_a_rank_has_the_threads_that_its_launcher_leaves_it(
    launcher: Launcher, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[int | None] = []
    used: list[int] = []
    time = SimpleNamespace(have_threads=had.append)
    monkeypatch.setattr(launchers, "rank_time", lambda: time)
    monkeypatch.setattr(launchers, "_accelerate_environment", lambda _job: {"OMP_NUM_THREADS": "6"})
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    launchers.prepare(job(launcher=launcher))
    assert had == [threads]
    assert (used or [None]) == [threads]
    assert os.environ["OMP_NUM_THREADS"] == str(threads or "")


@pytest.mark.parametrize(("wanted", "used"), [(0, 1), (3, 3)])
def test_cores_that_are_too_few_to_be_divided_leave_a_rank_one_thread(
    wanted: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", had.append)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str((os.cpu_count() or 1) + 1))
    launchers.watch_threads(None)
    torch.set_num_threads(wanted)
    assert had == [used]
