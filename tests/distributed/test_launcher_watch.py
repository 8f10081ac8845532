"""No rank outlives its launcher, or waits for one that is stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""
"""Starts what follows, and waits for it, as both of DeepSpeed's launchers do."""

RANK = """
import os, threading
from zerokit.distributed import launcher_watch, preemption, stuck
stuck.POLL_SECONDS = 0.01
pids = [os.getpid(), *(launcher.pid for launcher in launcher_watch.launchers())]
launcher_watch.watch(3, None, preemption.LeaveRequest(3, 60))
print(*pids, flush=True)  # from here on one of them may be killed
threading.Event().wait()
"""


def start(*words: str | Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *words], stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@pytest.mark.parametrize(
    "ended", [0, 1, 2], ids=["the launcher", "the one that started it", "the quickstart that started that"]
)
def test_a_rank_ends_with_any_of_its_launchers(ended: int, tmp_path: Path) -> None:
    names = ("zerokit", "deepspeed", "torchrun")
    for name in names:
        (tmp_path / name).write_text(RUNNER)
    with start(*(tmp_path / name for name in names), "-c", RANK) as runner:
        assert runner.stdout is not None
        assert runner.stderr is not None
        _, *launchers = map(int, runner.stdout.readline().split())
        assert launchers[2] == runner.pid
        os.kill(launchers[ended], signal.SIGKILL)
        assert runner.stdout.read() == ""  # all that have it open have ended
        assert f"rank 3 ends, because its launcher (process {launchers[ended]}) has ended" in runner.stderr.read()


@pytest.mark.torch  # a package called deepspeed must be found, though it is none
def test_a_rank_ends_with_a_launcher_that_has_ended_before_the_rank_looks(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "deepspeed").write_text(f"import os\nos.open({str(pipe)!r}, os.O_RDWR)\n{RUNNER}")
    package = tmp_path / "packages" / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "launch.py").write_text(RUNNER)
    # Opened before the runner is killed: nobody else holds the end that is written to.
    until_the_runner_has_ended = f"pipe = open({str(pipe)!r})\nprint('starts', flush=True)\npipe.read()\n"
    command = [sys.executable, tmp_path / "deepspeed", "-m", "deepspeed.launcher.launch", "-c"]
    with subprocess.Popen(
        [*command, until_the_runner_has_ended + RANK],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parents[1]), *sys.path])},
    ) as runner:
        assert runner.stdout is not None
        assert runner.stderr is not None
        assert runner.stdout.readline() == "starts\n"
        runner.kill()
        runner.wait()
        runner.stdout.read()
        assert f"because its launcher (process {runner.pid}) has ended" in runner.stderr.read()


def test_a_run_that_no_launcher_started_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(RUNNER)
    code = RANK.replace("threading.Event().wait()", "print(threading.active_count())")
    with start(tmp_path / "script.py", "-c", code) as other:
        assert other.stdout is not None
        pid, threads = other.stdout.read().splitlines()
        assert pid.isdigit()
        assert threads == "1"
