"""A rank that is stuck is named, with the call, and ended; one that is slow is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests import processes
from zerokit.distributed import stuck
from zerokit.distributed.process_table import children_of
from zerokit.distributed.ranks import Ranks
from zerokit.distributed.stuck import StuckWatch, Work

LOOKS = 5
SPIN = "while not done.is_set(): sum(range(1000))"


class EndedError(Exception):
    """In place of the end of this process."""


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    def end(code: int) -> None:
        assert code == 1
        raise EndedError

    monkeypatch.setattr(stuck, "os", SimpleNamespace(**{**vars(os), "_exit": end}))
    return Work()


def look(work: Work, doing: Any, looks: int = LOOKS + 2) -> bool:
    """Whether this process would be ended, looked at from another thread while the main one does that.

    Args:
        work: in which part of it.
        doing: what it does until its event is set.
        looks: how often it is looked at; `LOOKS` are enough.
    """
    done = threading.Event()
    ended = []
    main = threading.main_thread().ident

    def is_doing() -> bool:
        frames = traceback.walk_stack(sys._current_frames()[main or 0])
        return any(frame.f_code is doing.__code__ for frame, _ in frames)

    def watch() -> None:
        watcher = StuckWatch(Ranks(1, 2, 1, 2), work, LOOKS * stuck.POLL_SECONDS)
        while not is_doing():
            pass
        try:
            for _ in range(looks):
                watcher.look()
        except EndedError:
            ended.append(True)
        finally:
            done.set()

    thread = threading.Thread(target=watch)
    thread.start()
    doing(done)
    thread.join()
    return bool(ended)


def wait(done: threading.Event) -> None:
    done.wait()  # asleep in user code


def library(name: str, what: str = "done.wait()") -> Any:
    """What a module called `name` does until `done` is set."""
    space: dict[str, Any] = {"__name__": name}
    exec(f"def call(done):\n    {what}\n", space)
    return space["call"]


def test_a_rank_that_does_nothing_in_user_code_is_named_with_its_call(
    work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    with work.step():
        assert look(work, wait)
    said = capsys.readouterr().err
    assert said.startswith("zerokit: error: rank 1: is stuck: it has done nothing for 5 s, in ")
    assert "and the others wait for it. Its stack follows." in said.splitlines()[0]
    assert f'File "{__file__}"' in said
    assert "done.wait()  # asleep in user code" in said


@pytest.mark.parametrize(
    "doing",
    [
        library("torch.distributed.distributed_c10d"),
        library("deepspeed.comm.torch"),
        library("pdb"),
    ],
    ids=["waits in a collective", "waits in DeepSpeed", "is debugged"],
)
def test_a_rank_that_waits_for_others_is_left_alone(doing: Any, work: Work) -> None:
    with work.step():
        assert not look(work, doing, 40)


def test_one_that_does_nothing_between_steps_or_goes_on_is_left_alone(work: Work) -> None:
    assert not look(work, wait, 40)  # saves, evaluates or prepares data: whatever it waits for may be slow
    with work.step():
        assert not look(work, wait, LOOKS - 1)


def test_work_is_told_from_idleness(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "_IDLE_SHARE", -1.0)  # whatever this machine gives to a thread that spins
    with work.step():
        assert not look(work, library("modeling", SPIN), 40)


def test_whoever_waits_for_a_batch_may_be_idle(work: Work) -> None:
    loader = library("torch.utils.data.dataloader")
    with work.batch():
        assert not look(work, loader, 40)  # the first: it may come from far away
        assert not look(work, wait, 40)
    work.slowest_batch = 1.0
    with work.batch():
        assert not look(work, loader, 15)


def test_a_batch_that_never_comes_ends_the_run_however_busy(
    work: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stuck, "_IDLE_SHARE", -1.0)
    loader = library("torch.utils.data.dataloader", SPIN)
    with work.batch():
        assert not look(work, loader, 40)  # the first, before which anything may have to be read
    work.slowest_batch = 1.0
    with work.batch():
        assert not look(work, loader, 15)  # twenty times slower than any before it may be honest
        assert look(work, loader, 40)
    assert "it has been getting one batch for 20 s, in 'call' (<string>:2)" in capsys.readouterr().err


ELSEWHERE = """
import faulthandler, os, signal, sys
del faulthandler.register, os.sysconf, signal.SIGRTMAX
import zerokit.distributed.group
sys.argv = ["zerokit", "train", "--help"]
from zerokit.cli.main import main
main()
"""


def test_other_systems_have_less_and_every_command_starts_there() -> None:
    assert "--stuck-after" in processes.checked([sys.executable, "-c", ELSEWHERE])


def test_a_process_that_ends_while_it_is_looked_at_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(folder: Any) -> Any:
        raise ProcessLookupError(folder)

    monkeypatch.setattr(os, "scandir", gone)
    monkeypatch.setattr(os, "listdir", gone)
    assert children_of(os.getpid()) == []


PARENT = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1], str(rank)]) for rank in range(2)]
print(ranks[1].pid, flush=True)
sys.exit(ranks[0].wait() or ranks[1].wait())
"""
RANK = """
import os, sys, threading
rank = int(sys.argv[1])
os.environ.update(RANK=str(rank), MASTER_ADDR="here", MASTER_PORT="1")
if "started" not in os.environ:  # a launcher gives the variables to the process
    os.environ["started"] = "yes"
    os.execv(sys.executable, [sys.executable, "-c", os.environ["CODE"], str(rank)])
from zerokit.distributed import launcher_watch, stuck
from zerokit.distributed.ranks import Ranks
stuck.POLL_SECONDS = 0.02
def waits_for_a_signal():
    print("ready", flush=True)
    threading.Event().wait()
launcher_watch.watch(rank, stuck.StuckWatch(Ranks(rank, 2, rank, 2), stuck.Work(), 0.1))
waits_for_a_signal()
"""


@pytest.fixture
def ranks() -> Iterator[subprocess.Popen[str]]:
    """A parent of two ranks, each of which looks at the other."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, RANK],
        stdout=pipe, stderr=pipe, text=True, env={**os.environ, "CODE": RANK}, start_new_session=True,
    ) as parent:  # fmt: skip
        yield parent
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_stopped_rank_is_named_by_another_and_ended_with_its_stack(ranks: subprocess.Popen[str]) -> None:
    assert ranks.stdout is not None
    assert ranks.stderr is not None
    pid, *_ = [ranks.stdout.readline() for _ in range(3)]
    os.kill(int(pid), signal.SIGSTOP)
    assert ranks.wait() == 1
    said = ranks.stderr.read()
    assert f"zerokit: error: rank 1: is stuck: a signal stopped it (process {int(pid)}) 0 s ago" in said
    assert "in waits_for_a_signal" in said
    assert said.count("error") == 1
