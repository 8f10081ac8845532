"""Runs ranks in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from enum import Enum, auto
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from zerokit.console import note
from zerokit.errors import DocumentError, ZerokitError, combine_errors
from zerokit.files import cache_folder, write_file
from zerokit.rehearsal.job import RehearsalJob, WorkerExit
from zerokit.rehearsal.native.build import TESTED
from zerokit.rehearsal.parent.file_overlay import FileOverlay
from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.report.report import FileChanges
from zerokit.rehearsal.worker.guard import GuardedProcess
from zerokit.rehearsal.worker.progress import ask, doing
from zerokit.units import format_seconds, quantity

WORKER = "zerokit.rehearsal.worker.run"
_HINTS_OF_FAILURES = {
    WorkerExit.SCRIPT_FAILED: "What is printed above is what the cluster would show",
    WorkerExit.FAILED_WITH_VALUES: "The cluster would show what is printed above, unless it comes of a "
    "value: what depends on parameters is made up (a loss is 1), and values of a rank that is not rehearsed "
    "are those of a rank like it",
}
_INTERRUPTED = 130
_STDERR = 2
_POLL_SECONDS = 0.05
"""Seconds to wait for a rank before looking at the others."""
_SAME_FAILURE_SECONDS = 10.0
"""Seconds that the first rank has to fail for the same reason as another one."""
_NOTE_SECONDS = 10.0
"""Between lines about what is done."""
_LOG_CHARACTERS = 20_000
_LINE_CHARACTERS = 300


class ExplainedError(ZerokitError):
    """What a worker found wrong. It has printed this line, unless its output is dropped."""


class ScriptError(ZerokitError):
    """The script itself failed, and its traceback has been printed."""


class NeedsEveryRankError(ScriptError):
    """The script failed, perhaps because of values of a rank that stands for others; nothing is printed."""


class Output(Enum):
    """Where the output of a worker and its script goes."""

    SHOWN = auto()
    SHOWN_ON_STDERR = auto()
    """All output on stderr, so that stdout is free for the report."""
    SHOWN_IF_IT_FAILS = auto()
    DROPPED = auto()


class Worker:
    """One rank that is being rehearsed. As a context manager it leaves no process behind."""

    def __init__(self, job: RehearsalJob, output: Output, *, environment: dict[str, str] | None = None) -> None:
        self.job = job
        self._output = output
        self._log = Path(job.recording_file).with_suffix(".log")
        job_file = Path(job.recording_file).with_suffix(".job")
        write_file(job_file, job.to_json())
        # -P: files of the current folder must not shadow the worker's own imports.
        command = [sys.executable, "-P", "-m", WORKER, str(job_file)]
        with ExitStack() as stack:
            streams: dict[str, Any] = {}
            if output is Output.SHOWN_ON_STDERR:
                streams = {"stdout": _STDERR}
            elif output is not Output.SHOWN:
                log = stack.enter_context(self._log.open("wb"))
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            # A script goes through a set of strings in the same order in each rehearsal, and each rank in an order
            # of its own, as on a cluster. 0 would be no seed.
            seed = os.environ.get("PYTHONHASHSEED") or str(job.rank + 1)
            variables = {"PYTHONHASHSEED": seed, **(environment or {})}
            self._process = GuardedProcess(command, variables, **streams)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return bool(self._process.poll())

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def result(self, deadline: float | None) -> Recording:
        """Wait for the recording.

        Args:
            deadline: when to give up, by ``time.monotonic()``.

        Raises:
            ExplainedError: what the worker found wrong.
            ScriptError: the script failed.
            ZerokitError: the worker failed, or the time is up.
        """
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            code = self._process.wait(left)
        except subprocess.TimeoutExpired:
            place = ask(self.job.recording_file)
            message = "the rehearsal did not end in the time allowed"
            self._fail(f"{message}: it is at {place}" if place else message, "Raise --timeout, or lower --steps")
        recording = saved_recording(self.job)
        if code == WorkerExit.DONE and recording is not None:
            return recording
        self._show_log()
        if code in (_INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if code == WorkerExit.EXPLAINED:
            raise self._explained_error()
        if code == WorkerExit.NEEDS_EVERY_RANK:
            raise NeedsEveryRankError("the script compares what ranks hold", where=self.job.script)
        if code in _HINTS_OF_FAILURES:
            hint = _HINTS_OF_FAILURES[WorkerExit(code)]
            if recording is not None and recording.facts.hint:
                hint += f". {recording.facts.hint}"
            when = "before its first optimizer step was done"
            if recording is not None and recording.completed_steps:
                when = f"after {quantity(recording.completed_steps, 'optimizer step')}"
            self._fail(f"the script fails {when}", hint, ScriptError)
        if code == -signal.SIGKILL:
            self._fail("the rehearsal was killed", "This machine may be out of memory")
        if code in (-signal.SIGABRT, -signal.SIGSEGV):
            name = signal.Signals(-code).name
            self._fail(
                f"native code ended the rehearsal ({name}), with torch {version('torch')}",
                f"Install a version that zerokit is tested with: torch {TESTED}",
            )
        ending = f"with exit code {code}" if code else "without a recording"
        self._fail(f"internal error: the rehearsal ended {ending}", "Please report this with the output above")

    def _explained_error(self) -> ZerokitError:
        line = self._last_line().removeprefix("zerokit: error: ")
        errors: list[tuple[str, str | None, str | None]] = []
        with suppress(OSError, ValueError):
            errors = json.loads(self.job.error_file.read_text(encoding="utf-8"))
        each = [ExplainedError(message, where=where, hint=hint) for message, where, hint in errors]
        return combine_errors(each) or ExplainedError(line or "the rehearsal ended, for the reason on stderr")

    def _fail(self, message: str, hint: str, kind: type[ZerokitError] = ZerokitError) -> NoReturn:
        rank = f" (rank {self.job.rank})" if self._output is Output.SHOWN_IF_IT_FAILS else ""
        if last_line := self._last_line():
            message += f" ({last_line})"
        raise kind(message, where=f"{self.job.script}{rank}", hint=hint)

    def _last_line(self) -> str:
        """The last line that it printed, if its output is dropped."""
        if self._output is not Output.DROPPED:
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:_LINE_CHARACTERS] if lines else ""

    def _show_log(self) -> None:
        if self._output is Output.SHOWN_IF_IT_FAILS:
            sys.stderr.write(self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:])
            sys.stderr.flush()


class _Progress:
    """Notes what a rank does, where that takes long."""

    def __init__(self, recording_file: str) -> None:
        self._file, self._noted = recording_file, ""
        self._begun = self._last = time.monotonic()

    def note(self) -> None:
        """Print a line if some time has passed since the last one, and something else is done now."""
        now = time.monotonic()
        if now - self._last >= _NOTE_SECONDS and (words := doing(self._file)) and words != self._noted:
            self._last, self._noted = now, words
            note(f"{format_seconds(now - self._begun)}: the rehearsal {words}")


def saved_recording(job: RehearsalJob) -> Recording | None:
    """What a worker has recorded of a rank, if only until the script failed; None if it has saved nothing."""
    try:
        return Recording.load(job.recording_file)
    except DocumentError:
        return None


def run_workers(
    jobs: Sequence[RehearsalJob],
    *,
    output: Output = Output.SHOWN,
    timeout: float | None = None,
    more: Callable[[], Iterable[RehearsalJob]] = tuple,
    stop: threading.Event | None = None,
) -> tuple[list[Recording], FileChanges | None]:
    """Rehearse several ranks side by side.

    Args:
        jobs: a job for each rank, with a recording file of its own.
        output: of the first rank; that of others is dropped too, or shown if they fail.
        timeout: seconds for all of them together.
        more: called repeatedly for further jobs to start.
        stop: another thread sets it to end the rehearsal.

    Returns:
        Recordings in the order of the jobs, and the files that the script would have changed.

    Raises:
        ZerokitError: as :meth:`Worker.result`, of the first rank that fails.
        LaunchError: as :func:`zerokit.rehearsal.native.build.built_files_library`.
    """
    of_others = Output.DROPPED if output is Output.DROPPED else Output.SHOWN_IF_IT_FAILS
    deadline = None if timeout is None else time.monotonic() + timeout
    first = Path(jobs[0].recording_file)
    working = [Path(jobs[0].cwd), *([] if jobs[0].module else [Path(jobs[0].cwd, jobs[0].script).parent])]
    written = [first.parent, cache_folder()]
    with FileOverlay(first.with_suffix(".overlay"), working=working, written=written) as files:
        with ExitStack() as stack:
            workers: list[Worker] = []

            def start(job: RehearsalJob) -> None:
                whose = of_others if workers else output
                workers.append(stack.enter_context(Worker(job, whose, environment=files.environment)))

            for job in jobs:
                start(job)
            progress = _Progress(jobs[0].recording_file)
            recordings: dict[Worker, Recording] = {}
            while len(recordings) < len(workers):
                if output is not Output.DROPPED:
                    progress.note()
                if stop is not None and stop.is_set():
                    raise ZerokitError("the rehearsal was stopped", where=jobs[0].script)
                for job in more():
                    start(job)
                ended = [one for one in workers if one not in recordings and one.ends_within(_POLL_SECONDS)]
                if deadline is not None and time.monotonic() >= deadline:
                    ended += [one for one in workers if one not in recordings and one not in ended]
                # An error of all ranks is shown once, by the rank whose output is shown.
                if any(one.has_failed for one in ended) and workers[0].ends_within(_SAME_FAILURE_SECONDS):
                    ended.insert(0, workers[0])
                for worker in ended:
                    recordings[worker] = worker.result(deadline)
        return [recordings[worker] for worker in workers], files.changes()
