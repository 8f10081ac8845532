"""Processes that tests start: run to their end, or ended if they hang.

How many seconds a run takes depends on what else the machine does, so no test has a limit of its own. A
process hangs if it does no work, or never stops working, whatever the time: both are told by its CPU time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from zerokit.distributed.process_table import stat_of

INTERRUPTIBLE = (
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "for one in (signal.SIGINT, signal.SIGHUP): signal.signal(one, signal.SIG_DFL)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
)
"""Python, before its own arguments, that signals end although nohup or a shell's `&` has had them ignored."""
PATIENCE = 600.0
"""Seconds in which a process must do some work: long enough for one that waits while another compiles."""
LEAST_SHARE = 0.01
"""Of one CPU, while it works, however busy the machine; polling for what never comes takes less."""
MOST_CPU_SECONDS = 2400.0
"""Ten times what the longest of them uses."""


class HangsError(AssertionError):
    """A process was ended because it did nothing for long, or worked without end."""


def run(
    command: Sequence[str | Path] | str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    together: bool = False,
    patience: float = PATIENCE,
    most_cpu_seconds: float = MOST_CPU_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run `command` and return its exit code, stdout and stderr.

    Args:
        command: words, or a line for a shell.
        cwd: the folder to run in.
        env: the whole environment; this process's by default.
        together: stderr comes with stdout, in the order of writing.
        patience: seconds in which it must use `LEAST_SHARE` of one CPU.
        most_cpu_seconds: CPU that it may use, with all its children.

    Raises:
        HangsError: it was ended, with all processes that it started; says what it printed so far.
    """
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, so that all of it can be ended
    )
    work = Work([process.pid], most_cpu_seconds)
    while True:
        try:
            stdout, stderr = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            try:
                work.check(str(command), patience)
            except HangsError as error:
                stdout, stderr = process.communicate()
                said = "\n".join(text[-4000:] for text in (stdout, stderr) if text)
                raise HangsError(f"{error}\n{said}") from None
        except BaseException:
            work.end()
            raise
        else:
            return subprocess.CompletedProcess(command, process.returncode, stdout, stderr or "")


class Work:
    """What processes and their children have done so far.

    Args:
        pids: the processes.
        most_cpu_seconds: CPU that all of them may use.
    """

    def __init__(self, pids: Sequence[int], most_cpu_seconds: float = MOST_CPU_SECONDS) -> None:
        self._pids = pids
        self._most = most_cpu_seconds
        self._used = 0.0

    def check(self, name: str, patience: float = PATIENCE) -> None:
        """Go on if `LEAST_SHARE` of one CPU was used in the `patience` seconds since the last call.

        Raises:
            HangsError: it was not, or too much was used: the processes are ended.
        """
        before, self._used = self._used, sum(sum(_family(pid).values()) for pid in self._pids)
        # Less than before: a child has ended.
        works = self._used - before >= LEAST_SHARE * patience or self._used < before
        if not works or self._used > self._most:
            self.end()
            raise HangsError(f"ended after {self._used:.1f} s of CPU: {name}")

    def end(self) -> None:
        """End what is left of the processes and their children."""
        for one in [one for pid in self._pids for one in _family(pid)]:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


def checked(command: Sequence[str | Path], **options: Any) -> str:
    """The stdout of a `command` that must succeed; `options` as for :func:`run`."""
    done = run(command, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def _family(pid: int) -> dict[int, float]:
    """CPU seconds of a process and its descendants that run, in order of birth."""
    seen = {int(folder.name): stat_of(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")}
    stats = {one: stat for one, stat in seen.items() if stat is not None}
    found = [pid]
    for parent in found:
        found += [child for child, stat in stats.items() if stat.parent == parent]
    return {one: stats[one].cpu_seconds for one in found if one in stats}


@contextmanager
def exits(leave: Callable[[int], NoReturn] = os._exit) -> Iterator[None]:
    """A forked process ends where the block does, with the code of its ``exit``; 1 if it has none."""
    code = 1
    try:
        yield
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1 if stop.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)
