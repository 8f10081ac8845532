"""The optimizer steps and collectives of a run, and its end after the requested number of steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.recording import Collective, StepMark
from zerokit.rehearsal.watching.phases import Recomputing
from zerokit.rehearsal.watching.watcher import Events, StepEnd, Watcher
from zerokit.reporting.phases import RUN_PHASES

if TYPE_CHECKING:
    from zerokit.rehearsal.timing.rank_time import RankTime

_COUNTED = "count steps and end after the last"
_STEP = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "step", _COUNTED)
_BATCH = Patch("deepspeed.runtime.pipe.engine:PipelineEngine", "train_batch", _COUNTED)
_BACKWARD = Patch("torch.autograd", "backward", "see where the next step begins")
_GRADIENTS = Patch("torch.autograd", "grad", "see where the next step begins")
_MAKE_OPTIMIZER = Patch("torch.optim.optimizer:Optimizer", "__init__", "know which optimizers share a step")


class RehearsalComplete(BaseException):
    """The requested steps are done. Not an Exception, so that no script catches it by mistake."""


class Traffic(Watcher):
    """The collectives of this rank, in order."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[Collective] = []
        self._step = 0

    def add(self, name: str, size: int, group_size: int, *, is_of_rows: bool = False) -> None:
        """Record one call of a collective, by its name in torch.distributed.

        `size` is the bytes of the whole tensor: what is gathered in all, scattered from, reduced or broadcast
        (the convention of nccl-tests).
        """
        events = self._backend.event_count()
        phase = RUN_PHASES.index(self._backend.phase)
        self.calls.append(Collective(name, phase, self._step, size, group_size, events, is_of_rows))

    def take_back(self, place: int) -> list[Collective]:
        """Remove the calls from that place on, and return them."""
        taken, self.calls[place:] = self.calls[place:], []
        return taken

    def on_step_end(self, end: StepEnd) -> None:
        self._step = end.step
        self.calls[end.calls :] = [call._replace(step=end.step) for call in self.calls[end.calls :]]


class Steps(Watcher):
    """Counts optimizer steps, marks their ends in the recording and ends the run.

    The run ends after step `last` unless a watcher wants more; 0 lets the script end by itself.
    """

    def __init__(
        self,
        backend: Backend,
        events: Events,
        traffic: Traffic,
        recomputing: Recomputing,
        *,
        time: RankTime | None,
        last: int,
    ) -> None:
        self._backend, self._traffic, self._events = backend, traffic, events
        self._recomputing, self._time, self._last = recomputing, time, last
        self.marks: list[StepMark] = []
        self.flops: list[float] = []
        self.model_flops: list[float] = []
        """Of each step: three times its forward passes, or forward and backward passes without recomputation
        if that is less, as with frozen parameters."""
        self._flops_before = 0.0, 0.0
        self.completed = 0
        self.stopped = False
        self._saw_backward = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Torch's optimizers that the script has made."""
        self._stepped: set[int] = set()
        """Optimizers that have stepped since the last backward pass, by identity."""
        self._pending: StepEnd | None = None
        """The end of the step so far, if other optimizers still have gradients."""
        self._pending_thread = 0
        self._module_hook: Any = None
        """Ends a pending step at the next call of a module."""
        self._backward_passes = 0
        """Backward passes that are running; a pass may begin others."""
        self._captured: int | None = None
        """Steps in the CUDA graph that is being captured; None: no capture."""

    def on_process_start(self) -> None:
        wrap(_STEP, self._step)
        wrap(_BATCH, self._step)
        wrap(_BACKWARD, self._during_backward)
        wrap(_GRADIENTS, self._during_backward)
        wrap(_MAKE_OPTIMIZER, self._make_optimizer)

    def begin_capture(self) -> None:
        """A CUDA graph is captured: its steps happen when it is replayed."""
        self._captured = 0

    def end_capture(self) -> int:
        """How many steps the graph contains."""
        captured, self._captured = self._captured or 0, None
        return captured

    def replayed(self, steps: int) -> None:
        """A graph with this many steps in it was replayed."""
        self._end_pending()
        for _ in range(steps):
            self._end()

    def has_only_backward(self) -> bool:
        """Whether gradients were computed, and no optimizer has made a step."""
        return self._saw_backward and not self.completed

    def settled(self) -> int:
        """How many steps are completed, now that a batch is requested or a backward pass begins."""
        self._end_pending()
        return self.completed

    def on_exit(self) -> None:
        self.mark_pending()

    def mark_pending(self) -> None:
        """Mark a step that was over, but whose end was not yet certain."""
        if self._pending is not None:
            self._mark(self._pending)
            self._pending = None

    def _make_optimizer(self, make: Any, optimizer: Any, *arguments: Any, **given: Any) -> None:
        make(optimizer, *arguments, **given)
        self._optimizers.add(optimizer)

    def _step(self, step: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        before = engine.global_steps
        result = step(engine, *arguments, **given)
        if engine.global_steps > before:
            self._events.end(Watcher.on_engine_step_end, engine)
            self._end()
        return result

    # ---- steps of torch's optimizers without an engine

    def on_optimizer_step_end(self, optimizer: Any) -> None:
        if self._events.has_engine:
            return
        # Several optimizers may share the work of one step; one that comes again has begun the next.
        is_first = not self._stepped or id(optimizer) in self._stepped
        if is_first:
            self._end_pending()
        self._stepped = {id(optimizer)} if is_first else self._stepped | {id(optimizer)}
        if self._captured is not None:
            self._captured += is_first
        elif not self._backward_passes and (is_first or self._pending is not None):
            self._pending, self._pending_thread = self._now(), threading.get_ident()
            if self._others_have_gradients():
                self._wait_for_next_module_call()
            else:
                self._end_pending()

    def _others_have_gradients(self) -> bool:
        """Whether optimizers that have not stepped hold parameters with gradients."""
        alive = list(self._optimizers)
        done = {id(one) for each in alive if id(each) in self._stepped for one in _parameters(each)}
        return any(
            one.is_leaf and one.grad is not None  # torch warns about others
            for each in alive
            for one in _parameters(each)
            if id(one) not in done
        )

    def _wait_for_next_module_call(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._module_hook is None:
            # For one call only: a compiler that finds such hooks has more to inspect.
            self._module_hook = register_module_forward_pre_hook(lambda *_: self._end_pending())

    def _end_pending(self) -> None:
        """What optimizers did up to now was all of a step."""
        if self._pending is None or threading.get_ident() != self._pending_thread:
            return  # another thread, such as one that fetches batches ahead, may come in between
        pending, self._pending = self._pending, None
        if self._module_hook is not None:
            self._module_hook.remove()
            self._module_hook = None
        self._mark(pending)
        self._end_run()

    def _during_backward(self, run: Any, *arguments: Any, **given: Any) -> Any:
        import torch

        is_traced = torch._C._len_torch_dispatch_stack() > 0  # by a compiler, on tensors without memory
        is_captured = self._captured is not None
        is_evaluation = self._backend.phase == "evaluation"
        self._saw_backward |= run.__name__ == "backward" and not (is_traced or is_evaluation)
        if self._events.has_engine or is_evaluation or is_traced or is_captured:
            return run(*arguments, **given)
        self._end_pending()
        if not self._backward_passes:
            self._stepped.clear()
        self._backward_passes += 1
        try:
            result = run(*arguments, **given)
        finally:
            self._backward_passes -= 1
        if not self._backward_passes and self._stepped:  # optimizers stepped inside the backward pass
            self._stepped.clear()
            self._end()
        return result

    # ---- the end of a step

    def _now(self) -> StepEnd:
        clock_events = None if self._time is None else self._time.record_events()
        backend, calls = self._backend, len(self._traffic.calls)
        return StepEnd(self.completed + 1, backend.event_count(), calls, backend.flops, clock_events)

    def _end(self) -> None:
        self._mark(self._now())
        self._end_run()

    def _mark(self, end: StepEnd) -> None:
        self.completed = end.step
        self._backend.set_step(end.step)
        self.marks.append(StepMark(end.events, end.step))
        self.flops.append(end.flops - sum(self.flops))
        backward = self._backend.flops_of("backward")
        if self._events.has_engine:
            forward = self._backend.flops_of("forward") + self._backend.flops_of("loss")
        else:  # without an engine it is not known where a forward pass begins
            forward = end.flops - backward - self._backend.flops_of("step")
        once = forward + backward - self._recomputing.flops
        (forward_before, once_before), self._flops_before = self._flops_before, (forward, once)
        self.model_flops.append(min(3 * (forward - forward_before), once - once_before))
        self._events.end(Watcher.on_step_end, end)

    def _end_run(self) -> None:
        if self._last and self.completed >= self._last and not self._events.wants_more():
            self.stopped = True
            self._events.end(Watcher.on_run_end)
            raise RehearsalComplete


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]
