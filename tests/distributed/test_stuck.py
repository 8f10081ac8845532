"""A rank that is stuck is named, with the call, and ended; one that is slow is left alone."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import processes
from zerokit.distributed import stuck
from zerokit.distributed.process_table import Stat, children_of, stat_of
from zerokit.distributed.ranks import Ranks
from zerokit.distributed.stuck import StuckWatch, Work

pytestmark = pytest.mark.torch

LOOKS = 5
SPIN = "while not done.is_set(): sum(range(1000))"


class EndedError(Exception):
    """In place of the end of this process."""


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    def end(code: int) -> None:
        assert code == 1
        raise EndedError

    monkeypatch.setattr(stuck, "exit_now", end)
    return Work()


SECOND_OF_TWO = Ranks(1, 2, 1, 2)


def look(work: Work, doing: Any, looks: int = LOOKS + 2, ranks: Ranks = SECOND_OF_TWO) -> bool:
    """Whether this process would be ended, looked at from another thread while the main one does that.

    Args:
        work: in which part of it.
        doing: what it does until its event is set.
        looks: how often it is looked at; `LOOKS` are enough.
        ranks: its place.
    """
    done = threading.Event()
    ended = []
    main = threading.main_thread().ident

    def is_doing() -> bool:
        frames = traceback.walk_stack(sys._current_frames()[main or 0])
        return any(frame.f_code is doing.__code__ for frame, _ in frames)

    def watch() -> None:
        watcher = StuckWatch(ranks, work, LOOKS * stuck.POLL_SECONDS)
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


def library(name: str, what: str = "done.wait()", folder: str = "/env/site-packages") -> Any:
    """What a module called `name` does until `done` is set."""
    space: dict[str, Any] = {"__name__": name}
    file = f"{folder}/{name}.py"
    exec(compile(f"def call(done):\n    {what}\n", file, "exec"), space)
    return space["call"]


def test_a_rank_that_does_nothing_in_user_code_is_named_with_its_call(
    work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    with work.step():
        assert look(work, wait)
    said = capsys.readouterr().err
    call = f"'done.wait() # asleep in user code' ({__file__}:{wait.__code__.co_firstlineno + 1})"
    assert said.startswith(f"zerokit: error: rank 1: is stuck: it has done nothing for 5 s, in {call}, and ")
    assert "and the others wait for it. Its stack follows." in said.splitlines()[0]
    assert f'File "{__file__}"' in said
    assert "done.wait()  # asleep in user code" in said


@pytest.mark.parametrize(
    "doing",
    [
        library("torch.distributed.distributed_c10d"),
        library("deepspeed.comm.torch", folder="/clones"),
        library("any_package"),
        library("pdb", folder="/here"),
    ],
    ids=["waits in a collective", "waits in DeepSpeed's clone", "waits in a library", "is debugged"],
)
def test_a_rank_that_waits_for_others_is_left_alone(doing: Any, work: Work) -> None:
    with work.step():
        assert not look(work, doing, 40)


@pytest.mark.parametrize(
    ("other", "share", "ranks", "ends"),
    [
        ("S", 0.0, SECOND_OF_TWO, True),
        ("S", 0.2, SECOND_OF_TWO, False),
        ("D", 0.0, SECOND_OF_TWO, False),
        ("S", 0.0, Ranks(1, 4, 1, 2), False),
    ],
    ids=["all wait", "another computes", "another reads", "others are on another node"],
)
def test_ranks_that_generate_together_and_all_wait_are_ended(
    other: str,
    share: float,
    ranks: Ranks,
    ends: bool,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used = itertools.count(0.0, share * stuck.POLL_SECONDS)
    monkeypatch.setattr(stuck, "children_of", lambda _: [7, 8])
    monkeypatch.setattr(stuck, "stat_of", lambda _: Stat(other, 1, "0", next(used)))
    monkeypatch.setattr(stuck, "descendants", lambda _: [])
    waits = library("torch.distributed.distributed_c10d")
    with work.step(in_lockstep=True):
        assert look(work, waits, 40, ranks) == ends
    if ends:
        said = capsys.readouterr().err.splitlines()[0]
        assert said.startswith("zerokit: error: rank 1: is stuck: no rank has done anything for 5 s, in 'call' (/env/")
        assert "others" not in said
    with work.step():
        assert not look(work, waits, 40, ranks)


@pytest.mark.parametrize("part", ["step", "batch"])
def test_a_process_that_is_alone_waits_for_nobody(part: str, work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    waits = library("torch.utils.data.dataloader")
    assert not look(work, waits, 40, Ranks())
    with getattr(work, part)():
        assert look(work, waits, ranks=Ranks())
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith("zerokit: error: the run: is stuck: it has done nothing for 5 s, in 'call' (/env/")
    assert "others" not in said


def test_a_process_that_is_alone_may_wait_for_its_gpu(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with work.step():
        assert not look(work, library("torch.cuda"), 40, Ranks())


def test_one_that_does_nothing_between_steps_or_goes_on_is_left_alone(work: Work) -> None:
    assert not look(work, wait, 40)  # saves, evaluates or prepares data: whatever it waits for may be slow
    with work.step():
        assert not look(work, wait, LOOKS - 1)


@pytest.mark.parametrize("unknown", ["bytes_moved", "lists_children"])
def test_what_is_not_counted_is_not_nothing(unknown: str, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, unknown, lambda *_: None)
    with work.step():
        assert not look(work, wait, 40)
    work.slowest_batch = 1.0
    with work.batch():
        assert not look(work, library("torch.utils.data.dataloader"), 40)


def test_work_of_this_process_and_its_children_is_told_from_idleness(tmp_path: Path) -> None:
    def spin() -> None:
        begun = cpu_seconds(os.getpid())
        while cpu_seconds(os.getpid()) < begun + 0.2:
            pass

    (tmp_path / "first").write_text("so that something is counted")
    watcher = StuckWatch(Ranks(1, 2, 1, 2), Work(), 1.0)
    watcher._activity()
    assert watcher._activity() == (True, False)
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    assert watcher._activity() == (False, False)
    (tmp_path / "file").write_text("text")
    assert watcher._activity() == (False, True)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            while cpu_seconds(child.pid) < 0.2:
                pass
            watcher._activity()
            begun = cpu_seconds(child.pid)
            while cpu_seconds(child.pid) < begun + 0.2:
                pass
            assert watcher._activity() == (False, False)
        finally:
            child.kill()


def cpu_seconds(pid: int) -> float:
    stat = stat_of(pid)
    assert stat is not None
    return stat.cpu_seconds


@pytest.mark.parametrize(
    ("of_other", "ends"),
    [
        ({}, True),
        ({"RANK": "1"}, False),
        ({"RANK": ""}, False),
        ({"WORLD_SIZE": "4"}, False),
        ({"MASTER_PORT": "2"}, False),
    ],
)
def test_only_another_rank_of_this_run_is_ended(
    of_other: dict[str, str], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    ended: list[Any] = []
    other = {**own, "RANK": "0", **of_other}
    monkeypatch.setattr(stuck, "children_of", lambda parent: [7])
    monkeypatch.setattr(stuck, "stat_of", lambda pid: Stat("T", 1, "0", 0.0))
    monkeypatch.setattr(stuck, "variables_of", lambda pid: {name: value for name, value in other.items() if value})
    monkeypatch.setattr(StuckWatch, "_end_stopped", lambda *args: ended.append(args[1:]))
    watcher = StuckWatch(Ranks(1, 2, 1, 2), Work(), 1.0)
    for _ in range(3):
        watcher._look_at_others()
    assert ended == ([(7, "0")] if ends else [])


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
    where = "/env/site-packages/torch.utils.data.dataloader.py:2"
    assert f"it has been getting one batch for 20 s, in 'call' ({where})" in capsys.readouterr().err


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
os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="here", MASTER_PORT="1")
if "started" not in os.environ:  # a launcher gives the variables to the process
    os.environ["started"] = "yes"
    os.execv(sys.executable, [sys.executable, "-c", os.environ["CODE"], str(rank)])
from zerokit.distributed import launcher_watch, preemption, stuck
from zerokit.distributed.ranks import Ranks
stuck.POLL_SECONDS = 0.02
def waits_for_a_signal():
    print("ready", flush=True)
    threading.Event().wait()
for_stuck = stuck.StuckWatch(Ranks(rank, 2, rank, 2), stuck.Work(), 0.1)
launcher_watch.watch(rank, for_stuck, preemption.LeaveRequest(rank, 60))
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
