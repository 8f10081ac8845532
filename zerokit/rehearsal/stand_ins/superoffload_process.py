"""Runs SuperOffload's optimizer process in this process, one task at a time.

deepspeed/runtime/superoffload/superoffload_utils.py starts a process that steps DeepSpeedCPUAdam on subgroups
as their gradients arrive. Its worker function runs here unchanged, on a thread that runs only while the
training thread waits for it: so a rehearsal is reproducible, and counts all host memory in one process.
"""

from __future__ import annotations

import os
import queue
import threading
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
        self.worker: LockStepWorker | None = None
        self.is_idle = threading.Event()
        """Whether the worker waits for a task, or has ended."""
        self.shared_memory = SharedMemory()

    def SimpleQueue(self) -> LockStepQueue:  # noqa: N802 - the name that multiprocessing gives it
        return LockStepQueue(self)

    def Process(  # noqa: N802 - the name that multiprocessing gives it
        self, target: Callable[..., None], args: Sequence[Any] = (), daemon: bool | None = None
    ) -> LockStepWorker:
        self.worker = LockStepWorker(self, target, args)
        return self.worker


class LockStepQueue:
    """`multiprocessing.SimpleQueue`, as far as DeepSpeed uses it."""

    def __init__(self, context: LockStep) -> None:
        self._context = context
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.empty = self._items.empty

    def put(self, item: Any) -> None:
        """Queues `item`; from the training thread, returns only when the worker has dealt with it."""
        context = self._context
        for value in item.values() if isinstance(item, dict) else ():
            if isinstance(value, torch.Tensor):
                context.shared_memory.move(value)
        if threading.current_thread() is context.worker or context.worker is None or context.worker.has_ended:
            self._items.put(item)
            return
        context.is_idle.clear()
        self._items.put(item)
        context.is_idle.wait()

    def get(self) -> Any:
        if threading.current_thread() is self._context.worker:
            if self._items.empty():
                self._context.is_idle.set()
            return self._items.get()
        if self._items.empty():
            raise RuntimeError("nothing to get: the optimizer worker has answered everything it was sent")
        return self._items.get()


class LockStepWorker(threading.Thread):
    """`multiprocessing.Process`, as far as DeepSpeed uses it."""

    def __init__(self, context: LockStep, target: Callable[..., None], args: Sequence[Any]) -> None:
        super().__init__(target=target, args=args, name="optimizer process", daemon=True)
        self._context = context
        self.has_ended = False
        self.pid = os.getpid()

    def start(self) -> None:
        super().start()
        self._context.is_idle.wait()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.has_ended = True
            self._context.is_idle.set()

    def terminate(self) -> None:
        """Nothing to end by force: the worker runs only while it is waited for."""

    kill = terminate


def install() -> None:
    """Makes DeepSpeed's SuperOffload module start a :class:`LockStepWorker`; cores stay as they are."""
    put(_MULTIPROCESSING, SimpleNamespace(get_context=lambda method: LockStep(), SimpleQueue=LockStepQueue))
    unbound = SimpleNamespace(cpu_affinity=lambda cores=None: list(range(os.cpu_count() or 1)))
    apply(
        _PSUTIL,
        lambda psutil: SimpleNamespace(
            Process=lambda pid=None: unbound, AccessDenied=psutil.AccessDenied, NoSuchProcess=psutil.NoSuchProcess
        ),
    )
