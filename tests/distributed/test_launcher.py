"""A run ends well only if its ranks did, whatever its launcher says, and no rank outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.combinations import REST
from tests.processes import INTERRUPTIBLE
from zerokit.distributed.process_table import stat_of

pytestmark = pytest.mark.slow  # each test starts five processes

RUNNER = """
import os, subprocess, sys
started = subprocess.Popen([sys.executable, *sys.argv[1:]])
print("runner", os.getpid(), "launch", started.pid, flush=True)
if (code := started.wait()) > 0:
    sys.exit(code)
"""
"""As DeepSpeed's runner: a launcher below it that was killed has a negative code, of which it makes 0."""

LAUNCH = """
import os, subprocess, sys
ranks = []
for rank in ("0", "1"):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
    ranks.append(subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **variables}))
for _ in ranks:
    if code := os.waitstatus_to_exitcode(os.wait()[1]):
        for rank in ranks:
            rank.terminate()
        sys.exit(code)
"""
"""As DeepSpeed's launcher that starts the ranks, and ends them when one has failed."""

RANK = """
import os, threading
from zerokit.distributed import launcher_watch, preemption, stuck
from zerokit.distributed.exit_reports import exit_now
launcher_watch.watch(int(os.environ["RANK"]), None, preemption.LeaveRequest(0, 60))
"""
# One write for a line: two ranks share the pipe.
WAITS = (
    RANK
    + """
os.write(1, f"rank {os.environ['RANK']} {os.getpid()}\\n".encode())
threading.Event().wait()
"""
)

RUN = """
import os, sys
from zerokit.distributed.launcher import run_launcher

def restart(crash):
    print("may be restarted:", crash, file=sys.stderr)

sys.exit(run_launcher(sys.argv[1:], 2, os.environ, again=lambda: "Start it again", restart=restart))
"""


@contextmanager
def started(folder: Path, rank: str) -> Iterator[subprocess.Popen[str]]:
    """`rank` twice, below the two processes of a launcher and that of zerokit."""
    for name, code in (("zerokit", RUN), ("deepspeed", RUNNER), ("torchrun", LAUNCH)):
        (folder / name).write_text(code)
    words = [sys.executable, *(str(folder / name) for name in ("deepspeed", "torchrun")), rank]
    names = ("RANK", "LOCAL_RANK", "CROSS_RANK")
    with subprocess.Popen(
        [*INTERRUPTIBLE, folder / "zerokit", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test before may have made this process a rank.
        env={**{name: value for name, value in os.environ.items() if name not in names}, "FOLDER": str(folder)},
    ) as run:
        yield run


def pids_of(run: subprocess.Popen[str]) -> dict[str, int]:
    """The processes by name, when all of them are there and the ranks wait."""
    assert run.stdout is not None
    launchers, *ranks = (run.stdout.readline().split() for _ in range(3))
    found = {"zerokit": run.pid, "runner": int(launchers[1]), "launch": int(launchers[3])}
    return found | {f"rank {rank}": int(pid) for _, rank, pid in ranks}


def is_running(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.runs


SOFTER = {
    *(("zerokit", signal.SIGTERM), ("zerokit", signal.SIGHUP), ("runner", signal.SIGTERM), ("launch", signal.SIGSEGV))
}
KILLS = [
    pytest.param(killed, number, marks=() if number is signal.SIGKILL or (killed, number) in SOFTER else REST)
    for killed in ("zerokit", "runner", "launch", "rank 0", "rank 1")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP)
]


@pytest.mark.parametrize(("killed", "number"), KILLS)
def test_a_killed_process_ends_the_run_with_a_line_and_without_ranks(
    killed: str, number: signal.Signals, tmp_path: Path
) -> None:
    with started(tmp_path, WAITS) as run:
        pids = pids_of(run)
        os.kill(pids[killed], number)
        _, said = run.communicate()
        assert run.returncode not in (0, None)
        assert not [name for name, pid in pids.items() if name.startswith("rank") and is_running(pid)]
        assert "zerokit: " in said
        assert "Start" in said, "how to continue"


@pytest.mark.parametrize(
    ("rank", "code"),
    [
        (f"{RANK}exit_now(0)", 0),
        (f"{RANK}exit_now(75)", 75),
        (f"{RANK}exit_now(2)", 2),
        (f"{RANK}exit_now(int(os.environ['RANK']))", 1),
        ("pass", 1),  # what nobody reported did not finish
    ],
    ids=["all finished", "all saved", "all refused", "one failed", "no report"],
)
def test_the_exit_code_is_that_of_the_ranks(rank: str, code: int, tmp_path: Path) -> None:
    with started(tmp_path, rank) as run:
        _, said = run.communicate()
        assert run.returncode == code
        assert ("before the run finished" in said) == (rank == "pass")
        assert "may be restarted: " not in said or rank == "pass"


_OTHER_WAITS = "os.environ['RANK'] == '0' and threading.Event().wait()\n"
_RANK_1_FAILS_AND_RANK_0_LOSES_IT = """
from contextlib import suppress
pipe = os.environ["FOLDER"] + "/pipe"
with suppress(FileExistsError):
    os.mkfifo(pipe)
if os.environ["RANK"] == "0":
    open(pipe).read()  # until rank 1 has ended
    mark_outside_cause()
else:
    end = open(pipe, "w")
exit_now(1)
"""
_LOST = "from zerokit.distributed.exit_reports import mark_outside_cause\n"


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        (f"{RANK}{_OTHER_WAITS}os.kill(os.getpid(), 9)", "a rank was killed by SIGKILL before the run finished"),
        (f"{RANK}{_OTHER_WAITS}os.abort()", "a rank was killed by SIGABRT before the run finished"),
        (f"{RANK}{_LOST}mark_outside_cause()\nexit_now(1)", "a rank, or the connection to one, was lost"),
        (f"{RANK}{_LOST}{_OTHER_WAITS}mark_outside_cause()\nexit_now(1)", "a rank, or the connection"),
        (f"{RANK}{_OTHER_WAITS}exit_now(1)", None),
        (f"{RANK}{_LOST}{_RANK_1_FAILS_AND_RANK_0_LOSES_IT}", None),
        ("1 / 0", None),
    ],
)
def test_a_run_may_be_restarted_after_a_crash_from_outside(rank: str, reason: str | None, tmp_path: Path) -> None:
    with started(tmp_path, rank) as run:
        _, said = run.communicate()
    assert ("may be restarted: " in said) == (reason is not None)
    assert f"may be restarted: {reason or ''}" in said or reason is None


def test_a_run_that_is_stopped_is_not_restarted(tmp_path: Path) -> None:
    with started(tmp_path, WAITS) as run:
        pids_of(run)
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate()
    assert "may be restarted" not in said


def test_a_process_that_a_rank_starts_does_not_report_for_it(tmp_path: Path) -> None:
    """As one that generates with the model of a checkpoint, while the training goes on."""
    child = f"import os\nos.environ['RANK'] = '0'\n{RANK}exit_now(0)"
    rank = f"{RANK}import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nos._exit(0)"
    with started(tmp_path, rank) as run:
        run.communicate()
        assert run.returncode == 1


def test_the_second_ctrl_c_kills_ranks_that_do_not_end(tmp_path: Path) -> None:
    # One write each: two ranks write to one pipe.
    deaf = "import signal\nfor number in (signal.SIGTERM, signal.SIGINT):\n"
    deaf += "    signal.signal(number, lambda *_: os.write(1, b'asked\\n'))\n"
    with started(tmp_path, f"{deaf}{WAITS}") as run:
        pids = pids_of(run)
        run.send_signal(signal.SIGINT)
        assert run.stdout is not None
        assert run.stdout.readline() == "asked\n"
        run.send_signal(signal.SIGINT)
        _, said = run.communicate()
        assert run.returncode == 130
        assert not is_running(pids["rank 0"])
        assert not is_running(pids["rank 1"])
        assert "the run was stopped by SIGINT before it finished. Start it again" in said


def test_a_run_that_is_asked_to_stop_and_still_finishes_ends_well(tmp_path: Path) -> None:
    finishes = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit_now(0))\n"
    with started(tmp_path, f"{finishes}{WAITS}") as run:
        pids_of(run)
        run.send_signal(signal.SIGTERM)
        run.communicate()
        assert run.returncode == 0
