"""Starts ranks on this machine with DeepSpeed's launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from zerokit import console
from zerokit.choices import SAFE_PATH
from zerokit.distributed.exit_reports import ExitReports
from zerokit.distributed.launcher_watch import is_launcher
from zerokit.distributed.process_table import catches, descendants, stat_of, variables_of
from zerokit.distributed.ranks import free_port
from zerokit.errors import RunError
from zerokit.exits.codes import signal_of

_BIN = Path(sys.executable).parent
"""Folder of the `deepspeed` program: that of this Python, which may not be on the PATH."""
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 10.0
"""How long ranks may outlive their launcher, in addition to the time in which they save."""
_POLL_SECONDS = 0.1


def deepspeed_command(num_ranks: int, *words: str, port: int = 0) -> list[str]:
    """The command line of a script, or ``--module NAME``; `port` 0 is a free one. LaunchError if taken."""
    launcher = [str(_BIN / "deepspeed"), "--num_gpus", str(num_ranks), "--master_port", str(free_port(port))]
    # DeepSpeed would read /job/hostfile by itself, and start ranks on other machines.
    return [*launcher, "--hostfile", os.devnull, *words]


class LaunchedRanks:
    """A launcher and its ranks, which have all ended before :meth:`wait` returns.

    Args:
        save_within: seconds in which ranks may save after their launcher has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        num_ranks: int,
        environment: Mapping[str, str],
        *,
        save_within: float = 0.0,
        **options: Any,
    ) -> None:
        self._num_ranks = num_ranks
        self._patience = save_within + _GRACE_SECONDS
        self._requests: list[signal.Signals] = []
        self._known_ranks: set[int] = set()
        self._reports = ExitReports()
        self.crash: str | None = None
        """After :meth:`wait`: why the run ended if another try may succeed, because a rank, a machine or a
        connection was lost; None if it ended well, by its own error, or when it was asked to."""
        _become_subreaper()  # so that ranks of a launcher that was killed become children of this process
        self.process = subprocess.Popen(
            command, env={**environment, **self._reports.variables, SAFE_PATH: "1"}, start_new_session=True, **options
        )

    def wait(self) -> tuple[int, str | None]:
        """Wait until the launcher and all ranks have ended.

        Returns:
            the code that all ranks have reported. If they differ, the code of the signal that this process
                got, else the launcher's: never 0.
            the reason, if no rank can have reported it.
        """
        code = self.process.wait()
        self._end_ranks()
        reports = self._reports.read().values()
        codes = {report.code for report in reports}
        if sys.platform != "linux":  # no rank finds the pipe
            return code if code >= 0 else 128 - code, None
        own = any(report.code and not report.is_outside for report in reports)
        is_killed = code <= 0 or signal_of(code) is not None
        lost = any(report.is_outside for report in reports)
        if len(reports) == self._num_ranks and len(codes) == 1 and not lost:
            return codes.pop(), None
        reason = self._describe_end(code)
        if not own and (lost or is_killed) and not self._requests:
            self.crash = reason if is_killed else "a rank, or the connection to one, was lost"
        is_told = any(codes) and code >= 0  # ranks say only that their launcher has ended
        if self._requests:
            code = 128 + self._requests[0]
        code = code if code > 0 else 128 - code if code < 0 else 1
        return code, None if is_told else reason

    def stop(self) -> None:
        """Ask the ranks to save and end, and wait until they have."""
        self.forward_signal(signal.SIGTERM)
        self.process.wait()
        self._end_ranks()

    def forward_signal(self, number: int, frame: FrameType | None = None) -> None:
        """A signal handler: ask the ranks to save and end. The second Ctrl-C kills them (SIGKILL)."""
        self._requests.append(signal.Signals(number))
        ranks = self._ranks()
        if self._requests.count(signal.SIGINT) > 1:
            _send(signal.SIGKILL, ranks)
        elif not ranks:
            self.signal_process_group(signal.SIGTERM)
        elif len(self._requests) == 1:
            # A rank that saves before it ends has handlers for SIGTERM and Ctrl-C, and says by which it was
            # asked. Before that Python alone handles Ctrl-C, and not while a rank waits in a collective.
            saves = [pid for pid in ranks if catches(pid, number) and catches(pid, signal.SIGTERM)]
            _send(number, saves)
            _send(signal.SIGTERM, set(ranks) - set(saves))

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this process got a signal that it has passed on."""
        return bool(self._requests)

    def signal_process_group(self, number: int) -> None:
        """Send a signal to the launcher and all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _end_ranks(self) -> None:
        """Wait for ranks that have outlived their launcher; they notice its end and save."""
        asked: set[int] = set()
        deadline = time.monotonic() + self._patience
        while left := {*self._ranks(), *filter(is_launcher, self._members())}:
            late = time.monotonic() - deadline
            if late > 0:
                _send(signal.SIGKILL, left)
            if late > _GRACE_SECONDS:
                return  # the kernel does not let go of them
            # One that has no handler has nothing to save, and may not look for its launcher yet.
            new = {pid for pid in left - asked if not catches(pid, signal.SIGTERM)}
            _send(signal.SIGTERM, new)
            asked |= new
            time.sleep(_POLL_SECONDS)

    def _describe_end(self, code: int) -> str:
        if self._requests:
            return f"the run was stopped by {self._requests[0].name} before it finished"
        if code < 0:
            launcher = f"DeepSpeed's launcher (process {self.process.pid})"
            return f"{launcher} was killed by {signal_of(code)} before the run finished"
        if code == 0:
            return "DeepSpeed's process deepspeed.launcher.launch was killed before the run finished"
        if (name := signal_of(code)) is not None:
            return f"a rank was killed by {name} before the run finished"
        return f"DeepSpeed's launcher ended with exit code {code} before the run finished"

    def _members(self) -> list[int]:
        """The running processes of the launcher's session."""
        return [pid for pid in descendants(os.getpid()) if _is_in_session(pid, self.process.pid)]

    def _ranks(self) -> list[int]:
        """The ranks of the session, without processes that ranks have started."""

        def is_rank(pid: int) -> bool:
            return "LOCAL_RANK" in variables_of(pid)

        found = {pid: stat for pid in self._members() if (stat := stat_of(pid)) is not None and stat.runs}
        # Remembered, because the kernel shows no variables of a process that is ending.
        self._known_ranks |= {pid for pid, stat in found.items() if is_rank(pid) and not is_rank(stat.parent)}
        return [pid for pid in found if pid in self._known_ranks]


def run_launcher(
    command: Sequence[str],
    num_ranks: int,
    environment: Mapping[str, str],
    *,
    again: Callable[[], str],
    save_within: float = 0.0,
    restart: Callable[[str], Sequence[str] | None] | None = None,
) -> int:
    """Run a launcher and its ranks to their end, and pass signals on; arguments as of :class:`LaunchedRanks`.

    `restart` gets :attr:`LaunchedRanks.crash`, and returns the command of another try, or None.

    DeepSpeed's launcher would end at once by Ctrl-C or SIGTERM. In a session of its own it gets neither from
    a terminal, and ends after its ranks, which save first.
    """
    following: Sequence[str] | None = command
    while following is not None:
        launched = LaunchedRanks(following, num_ranks, environment, save_within=save_within)
        _pass_signals_to(launched)
        try:
            code, reason = launched.wait()
        finally:
            if launched.process.returncode is None:  # no Ctrl-C would reach it any more
                launched.signal_process_group(signal.SIGTERM)
        following = None if launched.crash is None or restart is None else restart(launched.crash)
        if launched.is_asked_to_stop:
            break
    if reason is not None:
        console.print_error(RunError(reason, hint=again()))
    return code


def _pass_signals_to(launched: LaunchedRanks) -> None:
    def pause(number: int, frame: FrameType | None) -> None:
        launched.signal_process_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        launched.signal_process_group(signal.SIGCONT)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, launched.forward_signal)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, launched.forward_signal)
    signal.signal(signal.SIGTSTP, pause)


def _become_subreaper() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _send(number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, number)


def _is_in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False
