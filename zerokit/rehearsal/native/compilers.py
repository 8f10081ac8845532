"""Compilers that run in parallel and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

_Result = TypeVar("_Result")
_WAKES = 0.5
"""Seconds. A signal that comes just before a thread begins to wait for a lock does not end its waiting."""


class Compilers:
    """Runs as many compilers as there are CPUs. As a context manager it ends them at an early exit.

    Args:
        scratch: for their temporary files, which a killed compiler leaves.
    """

    def __init__(self, scratch: Path) -> None:
        self._environment = {**os.environ, "TMPDIR": str(scratch)}
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_left = False

    def __enter__(self) -> Compilers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # so that none is just being started
            self._is_left = True
            for process in self._running:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
        self._pool.shutdown(cancel_futures=True)

    def start(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Call a function that uses :meth:`run`, once a CPU is free.

        Signals find the main thread waiting in :func:`as_they_end`, never within a call.
        """
        return self._pool.submit(function)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """As :meth:`start`, and wait for what it returns or raises."""
        return next(as_they_end([self.start(function)]))

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run `command` to its end, or to that of the context.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            if self._is_left:
                return subprocess.CompletedProcess(command, -signal.SIGKILL, "", "")
            # A group of its own: g++ leaves what it started running when it is ended itself.
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )
            self._running.add(process)
        stdout, stderr = process.communicate()
        with self._lock:
            self._running.remove(process)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def as_they_end(calls: Sequence[Future[_Result]]) -> Iterator[_Result]:
    """What they return, or raise; a signal's handler runs within half a second."""
    pending = set(calls)
    while pending:
        ended, pending = wait(pending, _WAKES, FIRST_COMPLETED)
        for one in ended:
            yield one.result()
