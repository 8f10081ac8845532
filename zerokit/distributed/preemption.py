"""Saves a checkpoint when a run is asked to leave: by SIGTERM, Ctrl-C, or the end of its launcher.

Schedulers send SIGTERM to each process or only to the launcher, and DeepSpeed's launcher passes it to one
rank after the other. So ranks exchange the request at the end of a step, and save together. The time until
then is limited by `save_within` seconds, and by the end of another rank, which would never arrive.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from zerokit import console
from zerokit.distributed.exit_reports import exit_now
from zerokit.distributed.process_table import runs
from zerokit.errors import PreemptedError

SAVE_WITHIN = 60.0
"""Seconds from the request to the end of the process."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that ask a rank to leave."""
_POLL_SECONDS = 0.5


class LeaveRequest:
    """Whether this rank was asked to leave, and why."""

    def __init__(self, rank: int, save_within: float) -> None:
        self.why: str | None = None
        self._rank = rank
        self._save_within = save_within
        self._since = 0.0
        self._handles_requests = False
        self._interrupts = 0
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def handle_requests(self, gather: Callable[[Any], list[Any]]) -> Iterator[None]:
        """In this context a request ends nothing: the code in it checks :attr:`why` after each step.

        A second Ctrl-C raises KeyboardInterrupt. Does nothing with `save_within` 0, and outside of the main
        thread, which alone gets signals.

        Args:
            gather: returns the object of each rank, in rank order.
        """
        if self._save_within == 0 or threading.current_thread() is not threading.main_thread():
            yield
            return
        host, this = socket.gethostname(), os.getpid()
        others = [pid for its_host, pid in gather((host, this)) if its_host == host and pid != this]
        # The system writes the number of each signal there, whatever the main thread waits for.
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        wakes_before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        self.why, self._interrupts, self._handles_requests = None, 0, True
        before = {number: signal.signal(number, self._handler(this)) for number in SIGNALS}
        over = threading.Event()
        bound = threading.Thread(target=self._bound, args=(reads, filter(runs, others), over), daemon=True)
        bound.start()
        try:
            yield
        finally:
            over.set()
            self._handles_requests = False
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakes_before)
            os.write(writes, b"\0")
            bound.join()
            os.close(reads)
            os.close(writes)

    def launcher_ended(self, pid: int) -> bool:
        """Treat the end of a launcher as a request to leave.

        Returns:
            whether the run may still save: False if requests are not handled now, or the time for saving is
                over.
        """
        if self._handles_requests:
            self._ask(f"its launcher, process {pid}, has ended")
        return self.why is not None and not self._is_late()

    def _forget(self) -> None:
        """In a forked child: do not write its signals into this process's pipe."""
        if self._handles_requests:
            signal.set_wakeup_fd(-1)

    def _ask(self, why: str) -> None:
        if self.why is None:
            self._since = time.monotonic()
            self.why = why

    def _is_late(self) -> bool:
        return time.monotonic() - self._since > self._save_within

    def _handler(self, of_process: int) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != of_process:  # one that was forked of it, and has no step to end
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            self._ask(signal.Signals(number).name)
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1:
                raise KeyboardInterrupt

        return handle

    def _bound(self, reads: int, others: Iterator[int], over: threading.Event) -> None:
        """Wait for a request, and end this process if its step does not end in time."""
        ranks = list(others)
        while self.why is None:
            number = os.read(reads, 1)[0]
            if over.is_set():
                return
            if number in SIGNALS:
                self._ask(signal.Signals(number).name)
        while not over.wait(_POLL_SECONDS):
            gone = next((pid for pid in ranks if not runs(pid)), None)
            if gone is not None:
                self._end(f"process {gone}, a rank that it would save with, has ended", 1)
            if self._is_late():
                took = f"step and checkpoint took more than {self._save_within:g} s (--save-within)"
                self._end(took, PreemptedError.exit_code)

    def _end(self, reason: str, code: int) -> None:
        console.note(f"zerokit: rank {self._rank} ends without a checkpoint ({self.why}): {reason}")
        exit_now(code)
