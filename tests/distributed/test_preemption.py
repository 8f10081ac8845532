"""A request to leave waits for the end of a step, but not for ever; a launcher hands it on to its ranks."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from zerokit.distributed.preemption import LeaveRequest

pytestmark = pytest.mark.slow  # most tests start several processes

FORKS = """
import os, signal, sys
from zerokit.distributed.preemption import LeaveRequest
with LeaveRequest(0, 60).handle_requests(lambda this: [this]):
    child = os.fork()
    if child == 0:
        os._exit(signal.set_wakeup_fd(-1) != -1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_signals_to_a_forked_child_are_not_written_to_the_rank() -> None:
    subprocess.run([sys.executable, "-c", FORKS], check=True)


ALONE = """
import os, subprocess, sys, threading
from zerokit.distributed.preemption import LeaveRequest
other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
leave = LeaveRequest(3, float(sys.argv[1]))
with leave.handle_requests(lambda this: [this, (this[0], other.pid)]):
    print(other.pid, flush=True)
    lock = threading.Lock()
    lock.acquire()
    input()
    other.stdin.close()
    lock.acquire()
"""
"""A rank in a call that does not come back, with another one of its host, which ends when it is told to."""


def test_a_request_is_noted_and_a_second_interrupt_ends_the_block() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    leave = LeaveRequest(0, 60)
    with pytest.raises(KeyboardInterrupt), leave.handle_requests(lambda this: [this]):  # noqa: PT012
        assert leave.why is None
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert leave.why == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is handler
    with leave.handle_requests(lambda this: [this]):
        assert leave.why is None
        assert leave.launcher_ended(7)
        assert leave.why == "its launcher, process 7, has ended"
    assert not LeaveRequest(0, 60).launcher_ended(7)  # which prepares, and has nothing to save


@pytest.mark.parametrize(
    ("save_within", "code", "said"),
    [
        ("0.01", 75, "rank 3 ends without a checkpoint (SIGTERM): step and checkpoint took more than 0.01 s"),
        ("600", 1, "rank 3 ends without a checkpoint (SIGTERM): process {other}, a rank that it would save"),
    ],
    ids=["a long step", "a rank that has ended"],
)
def test_what_does_not_come_is_not_waited_for(save_within: str, code: int, said: str) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, save_within], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdin is not None
        assert rank.stderr is not None
        other = rank.stdout.readline().strip()
        rank.send_signal(signal.SIGTERM)
        if code == 1:
            print(file=rank.stdin, flush=True)
        assert said.format(other=other) in rank.stderr.read()
        assert rank.wait() == code


LAUNCHER = """
import os, subprocess, sys
variables = {"RANK": "0", "LOCAL_RANK": "0"}
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **variables})
sys.exit(rank.wait() % 256)
"""
SAVES = """
import signal
from zerokit.distributed.exit_reports import exit_now

def asked(number, frame):
    print(signal.Signals(number).name, flush=True)
    exit_now(75)

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, asked)
"""
RUN = """
import os, sys
from zerokit.distributed.launcher import run_launcher
sys.exit(run_launcher(sys.argv[1:], 1, os.environ, again=lambda: "Start it again"))
"""


@pytest.mark.parametrize(
    ("rank", "number", "code"),
    [(SAVES, signal.SIGINT, 75), (SAVES, signal.SIGTERM, 75), ("", signal.SIGTERM, 143), ("", signal.SIGINT, 130)],
    ids=["Ctrl-C", "SIGTERM", "before the first step", "Ctrl-C before the first step"],
)
def test_a_launcher_asks_its_ranks_and_tells_what_they_did(rank: str, number: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "launcher").write_text(LAUNCHER)
    rank += "import threading\nprint('ready', flush=True)\nthreading.Event().wait()"
    words = [sys.executable, str(tmp_path / "launcher"), rank]
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *words],
        stdout=subprocess.PIPE,
        text=True,
        # A test before may have made this process a rank, and what it starts would be none of its own.
        env={name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")},
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        started.send_signal(number)
        # By the name of what was sent; one that does not save is ended at once, without a traceback.
        assert started.stdout.read() == (f"{signal.Signals(number).name}\n" if rank.startswith(SAVES) else "")
        assert started.wait() == code


def test_what_is_asked_at_the_terminal_can_be_answered() -> None:
    asks = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTTIN, lambda *_: os._exit(9))\n"  # which would stop it for ever
        "sys.exit(int(input()))"
    )
    run = f"import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{RUN}"
    person, terminal = pty.openpty()
    os.write(person, b"7\n")
    words = [sys.executable, "-c", asks]
    done = subprocess.run([sys.executable, "-c", run, *words], stdin=terminal, start_new_session=True, check=False)
    os.close(person)
    os.close(terminal)
    assert done.returncode == 7
