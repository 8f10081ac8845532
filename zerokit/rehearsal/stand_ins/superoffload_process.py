"""Runs SuperOffload's optimizer process in this process, one task at a time.

deepspeed/runtime/superoffload/superoffload_utils.py starts a process that steps DeepSpeedCPUAdam on subgroups
as their gradients arrive. Its worker function runs here unchanged, on a thread that runs only while the
training thread waits for it: so a rehearsal is reproducible, and counts all host memory in one process.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from zerokit.patches import Patch, apply, put
from zerokit.rehearsal.stand_ins.zenflow_adam import SharedMemory

_MODULE = "deepspeed.runtime.superoffload.superoffload_utils"
_MULTIPROCESSING = Patch(_MODULE, "mp", "run the optimizer's process in this one", since="0.18.0")
_PSUTIL = Patch(_MODULE, "psutil", "bind no cores", since="0.18.0")


class LockStep:
    """Takes the place of a multiprocessing context: makes one worker and the queues to and from it."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._workers_turn = False
        self._ended = False
        self._worker: threading.Thread | None = None
        self.shared_memory = SharedMemory()

    def SimpleQueue(self) -> LockStepQueue:  # noqa: N802 - the name that multiprocessing gives it
        return LockStepQueue(self)

    def Process(  # noqa: N802 - the name that multiprocessing gives it
        self, target: Callable[..., None], args: Sequence[Any] = (), daemon: bool | None = None
    ) -> LockStepWorker:
        return LockStepWorker(self, target, args)

    def start(self, body: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                body()
            finally:
                with self._turn:
                    self._workers_turn, self._ended = False, True
                    self._turn.notify_all()

        self._worker = threading.Thread(target=run, name="optimizer process", daemon=True)
        self._workers_turn = True
        self._worker.start()
        self._wait_for(workers_turn=False)
        return self._worker

    def is_worker(self) -> bool:
        return threading.current_thread() is self._worker

    def give_turn(self, *, to_worker: bool) -> None:
        """Lets the other side run, and returns when the turn is back."""
        with self._turn:
            if self._ended:
                return
            self._workers_turn = to_worker
            self._turn.notify_all()
        self._wait_for(workers_turn=not to_worker)

    def _wait_for(self, *, workers_turn: bool) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self._workers_turn == workers_turn)


class LockStepQueue:
    """`multiprocessing.SimpleQueue`, as far as DeepSpeed uses it."""

    def __init__(self, context: LockStep) -> None:
        self._context = context
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Queues `item`; from the training thread, returns only when the worker has dealt with it."""
        if isinstance(item, dict):
            for value in item.values():
                if isinstance(value, torch.Tensor):
                    self._context.shared_memory.move(value)
        self._items.append(item)
        if not self._context.is_worker():
            self._context.give_turn(to_worker=True)

    def get(self) -> Any:
        while not self._items:
            if not self._context.is_worker():
                raise RuntimeError("nothing to get: the optimizer worker has answered everything it was sent")
            self._context.give_turn(to_worker=False)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class LockStepWorker:
    """`multiprocessing.Process`, as far as DeepSpeed uses it."""

    def __init__(self, context: LockStep, target: Callable[..., None], args: Sequence[Any]) -> None:
        self._context = context
        self._target = target
        self._args = args
        self._thread: threading.Thread | None = None
        self.pid = os.getpid()

    def start(self) -> None:
        self._thread = self._context.start(lambda: self._target(*self._args))

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def terminate(self) -> None:
        """Nothing to end by force: the worker runs only while it is waited for."""

    kill = terminate


class _UnboundProcess:
    """`psutil.Process` that answers with this machine's cores and binds nothing."""

    def __init__(self, pid: int | None = None) -> None:
        self.pid = pid

    def cpu_affinity(self, cores: Sequence[int] | None = None) -> list[int]:
        return list(range(os.cpu_count() or 1))


def install() -> None:
    """Makes DeepSpeed's SuperOffload module start a :class:`LockStepWorker`; cores stay as they are."""
    multiprocessing = SimpleNamespace(get_context=lambda method: LockStep(), SimpleQueue=LockStepQueue)
    put(_MULTIPROCESSING, multiprocessing)
    apply(
        _PSUTIL,
        lambda psutil: SimpleNamespace(
            Process=_UnboundProcess, AccessDenied=psutil.AccessDenied, NoSuchProcess=psutil.NoSuchProcess
        ),
    )
