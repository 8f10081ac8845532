"""Ranks that measure at once, and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.validation.faults.place import wait_until
from zerokit.calibration.ranks import run_ranks
from zerokit.distributed.process_table import children_of, stat_of
from zerokit.errors import LaunchError

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]
LONG = 300.0
"""Seconds that no test takes."""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_process_gets_its_rank(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; pathlib.Path(sys.argv[1], os.environ['LOCAL_RANK']).touch()"
    run_ranks([[*python(code), str(tmp_path)]] * 3, LONG)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1", "2"]


def test_no_rank_imports_from_the_current_folder() -> None:
    run_ranks([python("import sys; sys.exit('' in sys.path)")], LONG)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise SystemExit(3)", "rank 2 of 4 ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "rank 2 of 4 ended by signal 9"),
    ],
)
def test_one_that_fails_is_named_at_once_and_ends_the_others(code: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        run_ranks([WAITS, WAITS, python(code), WAITS], LONG)


def test_those_that_do_not_end_are_named() -> None:
    with pytest.raises(LaunchError, match="these of 2 ranks did not end in 0 s: 0, 1"):
        run_ranks([WAITS, WAITS], 0.0)


_MEASURES = """
import sys
from zerokit.calibration.ranks import run_ranks
code = "import os, signal; os.write(1, bytes(str(os.getpid()), 'ascii') + bytes([10])); signal.pause()"
run_ranks([[sys.executable, "-c", code]] * 2, 300.0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_rank_outlives_a_command_that_gets_a_signal(number: signal.Signals) -> None:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*processes.INTERRUPTIBLE, "-c", _MEASURES], **streams) as measuring:
        assert measuring.stdout is not None
        pids = [int(measuring.stdout.readline()) for _ in range(2)]
        measuring.send_signal(number)
        assert measuring.wait() != 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


_CALIBRATES = "from zerokit.calibration.measure import Machine, measure_machine; measure_machine(Machine('cpu', 2, 1))"
_DIAGNOSES = """
from zerokit.distributed.ranks import free_port
from zerokit.doctor.speed import _ask
_ask("", [0, 0, 2, f"tcp://127.0.0.1:{free_port()}", 180])  # waits for another rank
"""


@pytest.mark.torch
@pytest.mark.parametrize(("code", "count"), [(_CALIBRATES, 2), (_DIAGNOSES, 1)], ids=["calibrate", "doctor"])
def test_no_rank_outlives_a_command_that_is_killed(code: str, count: int) -> None:
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as measuring:
        pids: list[int] = []
        while len(pids) < count or not all(_has_torch(pid) for pid in pids):
            pids = children_of(measuring.pid)
            assert measuring.poll() is None
        measuring.kill()
    assert wait_until(lambda: not any(map(_runs, pids)), 20.0)


def _has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def _runs(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.runs
