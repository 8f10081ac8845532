"""Rehearse ranks in processes of their own.

A worker leaves with 0 when it has written its report, with 2 when it has printed what is wrong, and with 3
or 4 when the script itself failed and its traceback has been printed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from enum import Enum, auto
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import NoReturn
from weakref import WeakSet

from pydantic import ValidationError

from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.rehearsal import stacks
from zerokit.rehearsal.error_hints import left_hint
from zerokit.rehearsal.file_overlay import FileOverlay
from zerokit.rehearsal.guard import GuardedProcess
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.journal import Journal
from zerokit.rehearsal.native.build import TESTED, cache_folder
from zerokit.rehearsal.report import RehearsalReport
from zerokit.units import quantity

WORKER = "zerokit.rehearsal.worker"
_EXPLAINED = 2
_SCRIPT_FAILED = {
    3: "What is printed above is what the cluster would show",
    4: "The cluster would show what is printed above, unless it comes of a value: what depends on parameters "
    "is made up (a loss is 1), and what is told by a rank that is not rehearsed is that of one like it",
}
_INTERRUPTED = 130
_STDERR = 2
_MOMENT = 0.01
"""Seconds for which a rank is waited for before the others are looked at."""
_FOR_THE_SAME = 10.0
"""Seconds that the first rank is given to fail of what another one fails of."""
_SHOWN_OF_A_LOG = 20_000
_SHOWN_OF_A_LINE = 300


class ExplainedError(Exception):
    """A worker has told what is wrong: the person, or in this line, where nobody saw what it printed."""


class ScriptError(ZerokitError):
    """The script itself failed, and its traceback has been printed where a person sees it."""


class Output(Enum):
    """What becomes of what a worker and its script print."""

    SHOWN = auto()
    SHOWN_ON_STDERR = auto()
    """All of it, so that stdout is free for the report."""
    SHOWN_IF_IT_FAILS = auto()
    DROPPED = auto()


_live: WeakSet[Worker] = WeakSet()


def call_off(folder: Path) -> None:
    """End what is rehearsed at this moment, by any thread, with files in `folder`."""
    for worker in list(_live):
        if Path(worker.job.report_file).is_relative_to(folder):
            worker.call_off()


class Worker:
    """One rank that is being rehearsed. As a context manager it leaves no process behind."""

    def __init__(
        self,
        job: RehearsalJob,
        output: Output,
        *,
        module: str | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.job = job
        self._output = output
        self._log = Path(job.report_file).with_suffix(".log")
        job_file = Path(job.report_file).with_suffix(".job")
        write_file(job_file, job.model_dump_json())
        # -P: what lies in the current folder must not stand in for the worker's own imports.
        command = [sys.executable, "-P", "-m", module or WORKER, str(job_file)]
        variables = environment or {}
        if output is Output.SHOWN:
            self._process = GuardedProcess(command, variables)
        elif output is Output.SHOWN_ON_STDERR:
            self._process = GuardedProcess(command, variables, stdout=_STDERR)
        else:
            with self._log.open("wb") as log:
                self._process = GuardedProcess(
                    command, variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
        _live.add(self)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()

    def call_off(self) -> None:
        """End it; who waits for its report hears that it was killed."""
        self._process.let_go()

    def has_said_its_end(self) -> bool:
        """Whether its script has ended, as other ranks are told."""
        if self.job.exchange_folder is None:
            return False
        said = Journal(Path(self.job.exchange_folder), self.job.rank)
        said.read_on()
        return "ends" in said.entries

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without a report."""
        return bool(self._process.poll())

    def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def result(self, deadline: float | None) -> RehearsalReport:
        """Wait for the report.

        Args:
            deadline: when to give up, by ``time.monotonic()``.

        Raises:
            ExplainedError: the worker has said what is wrong.
            ScriptError: the script failed.
            ZerokitError: the worker failed, or the time is up.
        """
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            code = self._process.wait(left)
        except subprocess.TimeoutExpired:
            place = stacks.ask(self.job.report_file)
            message = "the rehearsal did not end in the time allowed"
            self._fail(
                f"{message}: it stands at {place}" if place else message, "Raise --timeout, or lower --steps"
            )
        report = written_report(self.job)
        if code == 0 and report is not None:
            return report
        self._show_log()
        if code in (_INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if code == _EXPLAINED:
            raise ExplainedError(self._last_words().removeprefix("zerokit: error: "))
        if code in _SCRIPT_FAILED:
            hint = ". ".join((_SCRIPT_FAILED[code], *left_hint(self.job)))
            self._fail(f"the script fails {_moment(report)}", hint, ScriptError)
        if code == -signal.SIGKILL:
            self._fail("the rehearsal was killed", "This machine may be out of memory")
        if code in (-signal.SIGABRT, -signal.SIGSEGV):
            name = signal.Signals(-code).name
            self._fail(
                f"native code ended the rehearsal ({name}), with torch {version('torch')}",
                f"Install a version that zerokit is tested with: torch {TESTED}",
            )
        ending = f"with exit code {code}" if code else "without a report"
        self._fail(
            f"internal error: the rehearsal ended {ending}", "Please report this with the output above"
        )

    def _fail(self, message: str, hint: str, kind: type[ZerokitError] = ZerokitError) -> NoReturn:
        rank = f" (rank {self.job.rank})" if self._output is Output.SHOWN_IF_IT_FAILS else ""
        if last_words := self._last_words():
            message += f" ({last_words})"
        raise kind(message, where=f"{self.job.script}{rank}", hint=hint)

    def _last_words(self) -> str:
        """The last line that it printed, where nobody saw it; of a traceback that is the error."""
        if self._output is not Output.DROPPED:
            return ""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:_SHOWN_OF_A_LINE] if lines else ""

    def _show_log(self) -> None:
        if self._output is Output.SHOWN_IF_IT_FAILS:
            sys.stderr.write(self._log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_OF_A_LOG:])
            sys.stderr.flush()


def written_report(job: RehearsalJob) -> RehearsalReport | None:
    """What a worker has written of a rank, if only until the script failed; None if it has not."""
    try:
        return RehearsalReport.model_validate_json(Path(job.report_file).read_bytes())
    except (OSError, ValidationError):
        return None


def _moment(report: RehearsalReport | None) -> str:
    """When the script failed, by the report of what had been recorded until then."""
    if report is None or report.steps == 0:
        return "before its first optimizer step was done"
    return f"after {quantity(report.steps, 'optimizer step')}"


def rehearse_together(
    jobs: Sequence[RehearsalJob],
    *,
    output: Output = Output.SHOWN,
    timeout: float | None = None,
    more: Callable[[], Iterable[RehearsalJob]] = tuple,
) -> list[RehearsalReport]:
    """Rehearse several ranks side by side.

    Args:
        jobs: a job for each rank, with a report file of its own.
        output: what becomes of what the first one prints; that of others is dropped as well if this is, and
            else shown if they fail.
        timeout: seconds for all of them together.
        more: asked again and again for jobs that are to be started besides.

    Returns:
        Reports in the order of the jobs, further ones last.

    Raises:
        ExplainedError, ZerokitError: as :meth:`Worker.result`, of the first rank that fails.
        LaunchError: as :func:`zerokit.rehearsal.native.build.built_files_library`.
    """
    of_others = Output.DROPPED if output is Output.DROPPED else Output.SHOWN_IF_IT_FAILS
    deadline = None if timeout is None else time.monotonic() + timeout
    report = Path(jobs[0].report_file)
    working = [Path(jobs[0].cwd), *([] if jobs[0].module else [Path(jobs[0].cwd, jobs[0].script).parent])]
    written = [report.parent, cache_folder()]
    with FileOverlay(report.with_suffix(".overlay"), working=working, written=written) as files:
        with ExitStack() as stack:
            workers: list[Worker] = []

            def start(job: RehearsalJob) -> None:
                whose = of_others if workers else output
                workers.append(stack.enter_context(Worker(job, whose, environment=files.environment)))

            for job in jobs:
                start(job)
            reports: dict[Worker, RehearsalReport] = {}
            while len(reports) < len(workers):
                for job in more():
                    start(job)
                ended = [one for one in workers if one not in reports and one.ends_within(_MOMENT)]
                if deadline is not None and time.monotonic() >= deadline:
                    # Who has come to its end may wait for another, which is the one that stands somewhere.
                    left = [one for one in workers if one not in reports and one not in ended]
                    ended += sorted(left, key=Worker.has_said_its_end)
                # What all ranks fail of is told once, by the one whose output is seen.
                if any(one.has_failed for one in ended) and workers[0].ends_within(_FOR_THE_SAME):
                    ended.insert(0, workers[0])
                for worker in ended:
                    reports[worker] = worker.result(deadline)
        changes = files.changes()
        return [reports[worker].model_copy(update={"files": changes}) for worker in workers]
