from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import processes
from tests.rehearsal import fake_worker
from tests.rehearsal.recordings import job, training
from zerokit import console
from zerokit.errors import ZerokitError
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.parent import processes as parent_processes
from zerokit.rehearsal.parent.processes import ExplainedError, Output, Worker, run_workers
from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.watching.watcher import StepEnd
from zerokit.rehearsal.worker.progress import Doing

RECORDING = training()


@pytest.fixture(autouse=True)
def _fake_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_worker.install(monkeypatch, tmp_path)


def _job(tmp_path: Path, script: Path, **changes: Any) -> RehearsalJob:
    rank = changes.get("rank", 0)
    return job(script=str(script), recording_file=str(tmp_path / f"rank-{rank}.npz"), **changes)


def _one(tmp_path: Path, script: Path) -> Recording:
    (recording,), _ = run_workers([_job(tmp_path, script)])
    return recording


def _sites(recordings: Iterable[Recording]) -> list[tuple[str, ...]]:
    return [one.sites for one in recordings]


def test_a_recording_comes_back(tmp_path: Path) -> None:
    recording = _one(tmp_path, fake_worker.script(tmp_path, recording=RECORDING))
    assert np.array_equal(recording.events, RECORDING.events)
    assert recording.facts == RECORDING.facts


def test_only_the_first_rank_is_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = fake_worker.script(tmp_path, "print('rank', job['rank'])", RECORDING)
    jobs = [_job(tmp_path, script), _job(tmp_path, script, rank=15)]
    assert _sites(run_workers(jobs)[0]) == _sites([RECORDING, RECORDING])
    assert capfd.readouterr() == ("rank 0\n", "")
    run_workers(jobs, output=Output.SHOWN_ON_STDERR)
    assert capfd.readouterr() == ("", "rank 0\n")


def test_a_rank_that_fails_unheard_is_heard_after_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "if job['rank']: print('no such op'); raise SystemExit(2)"
    script = fake_worker.script(tmp_path, code, RECORDING)
    with pytest.raises(ExplainedError):
        run_workers([_job(tmp_path, script), _job(tmp_path, script, rank=15)])
    assert capfd.readouterr().err == "no such op\n"


def test_what_all_ranks_fail_of_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first_goes_on_when_the_other_has_ended = f"""
import os
if job['rank']:
    os.open({str(pipe)!r}, os.O_WRONLY)
else:
    open({str(pipe)!r}).read()
print('no such op on rank', job['rank'])
raise SystemExit(2)
"""
    script = fake_worker.script(tmp_path, first_goes_on_when_the_other_has_ended)
    with pytest.raises(ExplainedError):
        run_workers([_job(tmp_path, script), _job(tmp_path, script, rank=15)])
    assert capfd.readouterr() == ("no such op on rank 0\n", "")


def test_each_rank_goes_through_a_set_of_strings_in_an_order_of_its_own_that_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = fake_worker.script(tmp_path, "print({str(number) for number in range(20)})", RECORDING)

    def order(rank: int) -> str:
        run_workers([_job(tmp_path, script, rank=rank)])
        return capfd.readouterr().out

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert order(0) == order(0) != order(1)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert order(0) == order(1)


@pytest.mark.parametrize(
    ("steps", "moment"),
    [
        (None, "before its first optimizer step"),
        (0, "before its first optimizer step"),
        (2, "after 2 optimizer steps"),
    ],
)
def test_a_script_that_fails_is_told_when(tmp_path: Path, steps: int | None, moment: str) -> None:
    recording = None if steps is None else replace(RECORDING, step_marks=RECORDING.step_marks[:steps])
    script = fake_worker.script(tmp_path, recording=recording, then="raise SystemExit(3)")
    with pytest.raises(ZerokitError, match=rf"train\.py: the script fails {moment}"):
        _one(tmp_path, script)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(77)", "internal error: the rehearsal ended with exit code 77"),
        ("pass", "internal error: the rehearsal ended without a recording"),
        ("open(job['recording_file'], 'w').write('{}')", "internal error: the rehearsal ended without a recording"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed. This machine may be out of memory"),
        ("import os; os.abort()", r"native code ended the rehearsal \(SIGABRT\), with torch \d.*tested with"),
    ],
)
def test_a_worker_that_fails_is_told(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ZerokitError, match=message):
        _one(tmp_path, fake_worker.script(tmp_path, code))


def test_a_long_rehearsal_notes_what_it_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_processes, "_NOTE_SECONDS", 0)
    console.stderr.cache_clear()
    own = job(script=str(tmp_path / "train.py"), recording_file=str(tmp_path / "rank-0.npz"), steps=2)
    report = Doing(own.recording_file, own.steps)
    report.on_engine_end(None)
    progress = parent_processes._Progress(own.recording_file)
    progress.note()
    progress.note()  # nothing else is done by now
    report.on_step_end(StepEnd(1, 0, 0, 0.0, None))
    progress.note()
    report.on_step_end(StepEnd(2, 0, 0, 0.0, None))
    progress.note()
    report.on_step_end(StepEnd(3, 0, 0, 0.0, None))
    report.on_run_end()  # no larger batch follows
    progress.note()
    noted = [line.partition(": the rehearsal ")[2] for line in capfd.readouterr().err.splitlines()]
    assert noted == ["is in step 1 of 2", "is in step 2 of 2", "rehearses the largest batches", "ends"]


def test_an_interrupted_worker_interrupts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _one(tmp_path, fake_worker.script(tmp_path, "raise SystemExit(130)"))


def test_a_rehearsal_that_takes_too_long_says_where_it_stands(tmp_path: Path) -> None:
    pipe, script = tmp_path / "pipe", tmp_path / "endless.py"
    os.mkfifo(pipe)
    script.write_text(f"import signal\n\nopen({str(pipe)!r}, 'w').close()\nsignal.pause()\n")
    module = "zerokit.rehearsal.worker.progress"
    code = f"from {module} import answer; answer(job['recording_file']); import endless"
    with Worker(_job(tmp_path, fake_worker.script(tmp_path, code)), Output.DROPPED) as worker:
        pipe.read_text()
        with pytest.raises(ZerokitError, match=rf"allowed: it is at {script}:[34]\. Raise --timeout"):
            worker.result(0.0)  # which is over


def test_the_current_folder_does_not_stand_in_for_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(folder)
    assert _one(tmp_path, fake_worker.script(tmp_path, recording=RECORDING)).sites == RECORDING.sites


def test_a_quiet_rehearsal_prints_nothing_and_tells_why_it_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def jobs(script: Path) -> list[RehearsalJob]:
        return [_job(tmp_path, script), _job(tmp_path, script, rank=1)]

    good = fake_worker.script(tmp_path, "print('hello')", RECORDING)
    recordings, _ = run_workers(jobs(good), output=Output.DROPPED)
    assert _sites(recordings) == _sites([RECORDING, RECORDING])
    explained = fake_worker.script(tmp_path, "print('zerokit: error: no such op'); raise SystemExit(2)")
    with pytest.raises(ExplainedError, match=r"^no such op$"):
        run_workers(jobs(explained), output=Output.DROPPED)
    failing = fake_worker.script(tmp_path, "print('Traceback\\n  x = 1\\nKeyError: 0'); raise SystemExit(3)")
    with pytest.raises(ZerokitError, match=r"the script fails .* \(KeyError: 0\)"):
        run_workers(jobs(failing), output=Output.DROPPED)
    assert capfd.readouterr() == ("", "")


_LEAVES = """
import json, os, signal, subprocess, sys
pause = [sys.executable, "-c", "import signal; signal.pause()"]
left = [
    subprocess.Popen(pause),
    subprocess.Popen(pause, start_new_session=True),
    subprocess.Popen(pause, start_new_session=True, env={}),  # nothing of it tells where it comes from
]
fork = os.fork()
if fork == 0:
    signal.pause()
left = [fork, *(one.pid for one in left)]
"""


def _has_ended(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_what_a_script_leaves_running_ends_with_its_worker(tmp_path: Path) -> None:
    """At the worker's end, and not only at that of the rehearsal."""
    note = f"json.dump(left, open({str(tmp_path / 'left')!r}, 'w'))"
    script = fake_worker.script(tmp_path, f"{_LEAVES}\n{note}", RECORDING)
    with Worker(_job(tmp_path, script), Output.DROPPED) as worker:
        worker.result(None)
        left = json.loads((tmp_path / "left").read_text())
        assert [process for process in left if not _has_ended(process)] == []


def test_no_child_stays_behind_when_zerokit_is_killed(tmp_path: Path) -> None:
    """One in a session of its own, and one that was only forked, as workers that load data are."""
    rank = f"{_LEAVES}\nprint(json.dumps([os.getpid(), *left]), flush=True)\nsignal.pause()"
    command = f"""
import sys
from zerokit.rehearsal.worker.guard import GuardedProcess
GuardedProcess([sys.executable, "-c", {rank!r}], {{}}).wait()
"""
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as zerokit:
        assert zerokit.stdout is not None
        left = json.loads(zerokit.stdout.readline())
        zerokit.kill()
        assert zerokit.stdout.read() == b""  # nobody holds it open
    assert [process for process in left if not _has_ended(process)] == []


def test_a_rank_ends_whose_zerokit_was_killed_before_it_started(tmp_path: Path) -> None:
    program = "print('started'); import signal; signal.pause()"
    command = f"""
import os, subprocess, sys
from zerokit.rehearsal.worker import guard
start = subprocess.Popen.__init__
def start_and_die(*arguments, **given):
    start(*arguments, **given)
    os.kill(os.getpid(), 9)
subprocess.Popen.__init__ = start_and_die
guard.GuardedProcess([sys.executable, "-c", {program!r}], {{}})
"""
    done = processes.run([sys.executable, "-c", command])  # until nobody holds its stdout open
    assert done.returncode == -9
