"""Finds, names and ends a rank that is stuck: the others would wait for it for half an hour.

Slow is not stuck, and only time can distinguish them. So a rank is stuck only by one of four signs, each for
as long as the user allows:

- a signal stopped it, as the other ranks of its node see;
- it does nothing inside a step (no CPU, no file, no busy child), in code that is not installed: libraries
  may wait for other ranks, devices and networks;
- it has been loading one batch for that long, and 20 times longer than the slowest before, without reading
  disks;
- while ranks generate together, all of them do nothing, wherever they wait, and are on this node.

A rank that is alone waits for no other, so without a GPU it is stuck also where a library waits, and while it
loads its first batch. Where the system does not count what processes do, only the first sign works.

Not detected: endless computation; waiting while it saves or evaluates, or, beside ranks that do something,
inside a library; a stopped rank that is alone on its node. The timeout of collectives ends these.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from zerokit import console
from zerokit.code_origin import is_installed, is_no_file, is_stdlib
from zerokit.distributed.exit_reports import exit_now, mark_outside_cause
from zerokit.distributed.process_table import (
    bytes_moved,
    children_of,
    descendants,
    lists_children,
    stat_of,
    variables_of,
)
from zerokit.distributed.ranks import Ranks
from zerokit.errors import RankError

POLL_SECONDS = 1.0
_IDLE_SHARE = 0.05
"""Share of one CPU below which a process does nothing: occasional polling takes less."""
_SLOWER = 20
_LIBRARIES = {"accelerate", "deepspeed", "peft", "torch", "transformers", "zerokit"}
"""Packages that may run from a clone, outside of the folder of installed packages."""
_DEBUGGERS = {"IPython", "_pydevd_bundle", "bdb", "code", "pdb"}
_SHARED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""Variables that the ranks of one run have in common."""


class Work:
    """The part of a rank's work that only itself and other ranks can delay."""

    def __init__(self) -> None:
        self.number = 0
        """Parts begun."""
        self.is_step = self.is_in_lockstep = False
        self.is_batch = False
        self.slowest_batch: float | None = None
        """Seconds; None before the first."""

    @contextmanager
    def step(self, *, in_lockstep: bool = False) -> Iterator[None]:
        """Forward, backward and the optimizer's step, or generation, with each pass of all ranks (`in_lockstep`)."""
        self.number += 1
        self.is_step, self.is_in_lockstep = True, in_lockstep
        try:
            yield
        finally:
            self.is_step = False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Getting a batch from a data loader."""
        started = time.monotonic()
        self.number += 1
        self.is_batch = True
        try:
            yield
        finally:
            self.is_batch = False
            self.slowest_batch = max(self.slowest_batch or 0.0, time.monotonic() - started)


class StuckWatch:
    """Looks at this rank, and at the others of its node, once in `POLL_SECONDS`.

    Time is counted in looks, so that the hours of a suspended machine do not count.
    """

    def __init__(self, ranks: Ranks, work: Work, stuck_after: float) -> None:
        self._ranks = ranks
        self._work = work
        self._is_alone = ranks.world_size == 1
        self._most_looks = stuck_after / POLL_SECONDS
        self._stopped: dict[int, int] = {}
        """Looks in a row that have found a process stopped."""
        self._idle = 0
        self._one_batch = 0
        self._number = 0
        self._used = (0.0, 0)
        self._cpu_of_all = 0.0
        self._are_all_idle = False
        faulthandler.register(_show_stack(), file=2)

    def look(self) -> None:
        """End this process if a rank is stuck, after a line that says so and its stack."""
        if not self._is_alone:
            self._look_at_others()
        self._look_at_this()

    def _look_at_others(self) -> None:
        seen = self._stopped
        self._stopped = {}
        stats = {pid: stat for pid in children_of(os.getppid()) if (stat := stat_of(pid)) is not None}
        before, self._cpu_of_all = self._cpu_of_all, sum(stat.cpu_seconds for stat in stats.values())
        idle = abs(self._cpu_of_all - before) < _IDLE_SHARE * POLL_SECONDS * len(stats)
        are_all_here = self._ranks.local_world_size == self._ranks.world_size <= len(stats)
        self._are_all_idle = are_all_here and idle and not any(stat.state in "DT" for stat in stats.values())
        for pid, stat in stats.items():
            if stat.state != "T":
                continue
            self._stopped[pid] = seen.get(pid, 0) + 1
            # One of those that see it is to speak.
            if self._stopped[pid] >= self._most_looks + 2 * self._ranks.local_rank:
                variables = variables_of(pid)
                rank = variables.get("RANK", "")
                is_of_run = all(name in variables and variables[name] == os.environ.get(name) for name in _SHARED)
                if is_of_run and rank not in ("", str(self._ranks.rank)):
                    self._end_stopped(pid, rank)

    def _end_stopped(self, pid: int, rank: str) -> NoReturn:
        looks = self._stopped[pid]
        _report(f"rank {rank}", f"a signal stopped it (process {pid}) {looks * POLL_SECONDS:.0f} s ago")
        with suppress(ProcessLookupError):
            os.kill(pid, _show_stack())  # which it does as soon as it goes on
            os.kill(pid, signal.SIGCONT)
            threading.Event().wait(POLL_SECONDS)
            os.kill(pid, signal.SIGKILL)
        exit_now(1)

    def _look_at_this(self) -> None:
        work = self._work
        is_new, self._number = work.number != self._number, work.number
        activity = self._activity()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if activity is None or frame is None or is_new or not (work.is_step or work.is_batch) or _is_debugged(frame):
            self._idle = self._one_batch = 0
            return
        loads = work.is_batch and _has(frame, "torch.utils.data") and not _has(frame, "torch.distributed")
        idle, reads = activity
        all_idle = self._are_all_idle and work.is_in_lockstep and not _uses_gpu()
        if not self._is_alone or _uses_gpu():
            idle = idle and work.is_step and (all_idle or not _is_library(_caller(frame)))
        self._idle = self._idle + 1 if idle else 0
        self._one_batch = self._one_batch + 1 if loads and not reads else 0
        if self._idle >= self._most_looks:
            what = "no rank has done anything" if all_idle else "it has done nothing"
            self._end(frame, what, self._idle, waiting=not all_idle)
        if work.slowest_batch is not None:
            slow = _SLOWER * work.slowest_batch / POLL_SECONDS
            if self._one_batch >= max(self._most_looks, slow):
                self._end(frame, "it has been getting one batch", self._one_batch)

    def _activity(self) -> tuple[bool, bool] | None:
        """Whether this process and its children were idle, and whether they use disks; None if unknown."""
        pid = os.getpid()
        if not lists_children():
            return None
        children = descendants(pid)
        stats = [stat for stat in map(stat_of, (pid, *children)) if stat is not None]
        # Of this process, without this thread; stats[0] counts in hundredths.
        cpu = time.process_time() - time.thread_time() + sum(stat.cpu_seconds for stat in stats[1:])
        counts = [bytes_moved(one) for one in (pid, *children)]
        if counts[0] == 0 or None in counts:  # a rank has written something by now
            return None
        moved = sum(filter(None, counts))
        before, self._used = self._used, (cpu, moved)
        reads = moved != before[1] or any(stat.state == "D" for stat in stats)
        used = abs(cpu - before[0])  # less, where a child has ended
        return used < _IDLE_SHARE * POLL_SECONDS and not reads, reads

    def _end(self, frame: FrameType, what: str, looks: int, *, waiting: bool = True) -> NoReturn:
        at = traceback.extract_stack(_caller(frame), limit=1)[-1]
        call = f"'{at.line or at.name}' ({at.filename}:{at.lineno})"
        where = "the run" if self._is_alone else f"rank {self._ranks.rank}"
        _report(where, f"{what} for {looks * POLL_SECONDS:.0f} s, in {call}", waiting=waiting and not self._is_alone)
        sys.stderr.writelines(traceback.format_stack(frame))
        sys.stderr.flush()
        exit_now(1)


def _show_stack() -> int:
    """The signal that makes a rank print its stack; no other program sends it. Linux has it."""
    return signal.SIGRTMAX - 3


def _uses_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _report(where: str, why: str, *, waiting: bool = True) -> None:
    mark_outside_cause()
    error = RankError(
        f"is stuck: {why}{', and the others wait for it' * waiting}",
        where=where,
        hint="Its stack follows. Where that is no mistake, allow more with --stuck-after SECONDS (0: any)",
    )
    console.print_error(error)


def _frames(innermost: FrameType) -> Iterator[str]:
    """The modules of a stack, the innermost first."""
    frame: FrameType | None = innermost
    while frame is not None:
        yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def _caller(innermost: FrameType) -> FrameType:
    """The innermost frame outside of Python's own files and of generated code."""
    frame: FrameType | None = innermost
    while frame is not None:
        path = frame.f_code.co_filename
        if not (is_no_file(path) or is_stdlib(path)):
            return frame
        frame = frame.f_back
    return innermost


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES or is_installed(frame.f_code.co_filename)


def _is_debugged(innermost: FrameType) -> bool:
    return any(name.partition(".")[0] in _DEBUGGERS for name in _frames(innermost))


def _has(innermost: FrameType, package: str) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for name in _frames(innermost))
