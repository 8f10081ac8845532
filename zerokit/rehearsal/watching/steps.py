"""The optimizer steps of a run, and its end after as many as were asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.recording import StepMark
from zerokit.rehearsal.watching.labels import Labels
from zerokit.rehearsal.watching.next_call import NextCall
from zerokit.rehearsal.watching.phases import Phases
from zerokit.rehearsal.watching.recomputing import Recomputing
from zerokit.rehearsal.watching.updates import (
    Moment,
    Update,
    Updates,
    leaves_of,
    parameters_among,
    several,
    tensors_alive,
)
from zerokit.reporting.phases import RUN_PHASES

if TYPE_CHECKING:
    from zerokit.rehearsal.timing.rank_time import RankTime
    from zerokit.rehearsal.watching.traffic import Traffic

_COUNTED = "count steps and end after the last"
_STEP = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "step", _COUNTED)
_BATCH = Patch("deepspeed.runtime.pipe.engine:PipelineEngine", "train_batch", _COUNTED)
_BACKWARD = Patch("torch.autograd", "backward", "see which parameters get gradients")
_GRADIENTS = Patch("torch.autograd", "grad", "see which parameters get gradients")


class RehearsalComplete(BaseException):
    """The steps that were asked for are done. Not an Exception, so that no script catches it by mistake."""


class Steps:
    """Counts optimizer steps, marks their ends in the record and ends the run.

    Args:
        backend: the loaded library.
        traffic: the collectives of this rank.
        labels: what blocks are for, said anew at the end of each step.
        phases: who knows whether there is an engine.
        recomputing: who counts what checkpointing does again.
        time: of the rank, if it is rehearsed.
        last: steps after which the run ends; 0 lets the script end by itself.
        are_over: asked from then on, whether all batches have been rehearsed that are to be.
        at_end: called when they have.
    """

    def __init__(
        self,
        backend: Backend,
        traffic: Traffic,
        labels: Labels,
        phases: Phases,
        recomputing: Recomputing,
        *,
        time: RankTime | None,
        last: int,
        are_over: Callable[[], bool],
        at_end: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._traffic = traffic
        self._labels = labels
        self._phases = phases
        self._recomputing = recomputing
        self._time = time
        self._last = last
        self._are_over = are_over
        self._at_end = at_end
        self.marks: list[StepMark] = []
        self.flops: list[float] = []
        self.model_flops: list[float] = []
        """Those that each step needs: three times its forward passes', or what these and the backward passes
        did but once if that is less, as where parameters are frozen."""
        self._flops_before = 0.0, 0.0
        self.completed = 0
        self.stopped = False
        self._updates = Updates(backend, self._now, self._end_update)
        self.updates: list[Update] = []
        """The steps that were seen by what they wrote."""
        self._told = False
        """Whether an engine or an optimizer of torch's tells of steps."""
        self._stepped: set[int] = set()
        """Optimizers that have stepped since the last backward pass."""
        self._held: Moment | None = None
        """When the last of them had, of a step that may go on: there are gradients for others."""
        self._held_by = 0
        """The thread that steps."""
        self._next_call = NextCall(self._end_held)
        self._backward_passes = 0
        """Those that are running; a pass may begin others."""
        self._captured: int | None = None
        """Steps in the CUDA graph that is being captured; None: none is."""
        self._leaves: list[tuple[Any, bool]] = []
        """Of the graphs that they go through, and whether they are given gradients."""

    def install(self) -> None:
        """Follow DeepSpeed's engine, else torch's optimizers, and else the parameters."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        wrap(_STEP, self._step)
        wrap(_BATCH, self._step)
        wrap(_BACKWARD, self._run_backward)
        wrap(_GRADIENTS, self._run_gradients)
        self._updates.install()
        register_optimizer_step_post_hook(self._end_plain_step)

    def begin_capture(self) -> None:
        """A CUDA graph is captured from here on: what a step would be now is one when it is replayed."""
        self._captured = 0

    def end_capture(self) -> int:
        """How many steps the graph takes."""
        captured, self._captured = self._captured or 0, None
        return captured

    def replayed(self, steps: int) -> None:
        """A graph with so many steps in it was replayed."""
        self._end_held()
        for _ in range(steps):
            self._end()

    def settled(self) -> int:
        """How many steps are completed, now that a batch is asked for or a backward pass begins."""
        self._end_held()
        self._end_update()
        return self.completed

    def finish(self) -> None:
        """The run is over: a last step may not have been told yet."""
        if self._held is not None:
            self._mark(self._held)
            self._held = None
        update = None if self._is_told else self._updates.take(tensors_alive())
        if update is not None:
            self._mark(update.end, update)

    @property
    def _is_told(self) -> bool:
        return self._told or self._phases.has_engine

    def _step(self, step: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        before = engine.global_steps
        result = step(engine, *arguments, **given)
        if engine.global_steps > before:
            self._labels.label_engines()
            self._end()
        return result

    def _end_plain_step(self, optimizer: Any, *_: Any) -> None:
        if self._phases.has_engine:
            return
        self._labels.label_plain(optimizer)
        if not self._told:
            self._told = True
            self._updates.forget()
        # Several optimizers may share the work of one step; one that comes again has begun the next.
        is_first = not self._stepped or id(optimizer) in self._stepped
        if is_first:
            self._end_held()
        self._stepped = {id(optimizer)} if is_first else self._stepped | {id(optimizer)}
        if self._captured is not None:
            self._captured += is_first
        elif not self._backward_passes and (is_first or self._held is not None):
            self._held, self._held_by = self._now(), threading.get_ident()
            if self._updates.optimizers_waiting(self._stepped):
                self._next_call.wait()
            else:
                self._end_held()

    def _end_held(self) -> None:
        """What optimizers did up to now was all of a step."""
        if self._held is None or threading.get_ident() != self._held_by:
            return  # what another thread asks, such as one that fetches batches ahead, may come in its midst
        held, self._held = self._held, None
        self._next_call.forget()
        self._mark(held)
        self._end_run()

    # ---- backward passes, where nothing but what they change tells of steps

    def _run_backward(self, run: Any, *arguments: Any, **given: Any) -> Any:
        roots = arguments[0] if arguments else given["tensors"]
        return self._during_backward(lambda: run(*arguments, **given), roots, None)

    def _run_gradients(self, run: Any, *arguments: Any, **given: Any) -> Any:
        roots = arguments[0] if arguments else given["outputs"]
        inputs = arguments[1] if len(arguments) > 1 else given["inputs"]
        return self._during_backward(lambda: run(*arguments, **given), roots, inputs)

    def _during_backward(self, run: Callable[[], Any], roots: Any, inputs: Any) -> Any:
        """Run a backward pass.

        Args:
            run: runs it.
            roots: where it begins.
            inputs: what it gives gradients to; None for all leaves.
        """
        import torch

        is_traced = torch._C._len_torch_dispatch_stack() > 0  # by a compiler, on tensors without memory
        is_captured = self._captured is not None
        if self._phases.has_engine or self._backend.phase == "evaluation" or is_traced or is_captured:
            return run()
        self._end_held()
        leaves = [] if self._told else leaves_of(roots)
        if self._backward_passes:
            # Of a pass within another, as of reentrant checkpointing: its inputs are gone when it is over.
            leaves = parameters_among(leaves)
        else:
            self._end_update(leaves)
        wanted = None if inputs is None else {id(one) for one in several(inputs)}
        self._leaves += [(leaf, wanted is None or id(leaf) in wanted) for leaf in leaves]
        if not self._backward_passes:
            self._stepped.clear()
        self._backward_passes += 1
        try:
            result = run()
        finally:
            self._backward_passes -= 1
        if not self._backward_passes:
            self._end_backward()
        return result

    def _end_backward(self) -> None:
        leaves, self._leaves = self._leaves, []
        if self._stepped:  # in its midst
            self._stepped.clear()
            self._end()
        elif not self._told:
            trained = [leaf for leaf, gets_gradients in leaves if gets_gradients]
            self._updates.watch(trained, [leaf for leaf, _ in leaves])
            self._labels.label_trained(parameters_among(trained) or trained)

    def _end_update(self, leaves: Sequence[Any] = ()) -> None:
        update = None if self._is_told else self._updates.take(leaves)
        if update is not None:
            self._mark(update.end, update)
            self._end_run()

    # ---- the end of a step

    def _now(self) -> Moment:
        time = None if self._time is None else self._time.moment()
        return Moment(self._backend.event_count(), len(self._traffic.calls), self._backend.flops, time)

    def _end(self) -> None:
        self._mark(self._now())
        self._end_run()

    def _mark(self, at: Moment, update: Update | None = None) -> None:
        """A step has ended at a moment, which may be some time ago if it was seen as an update."""
        self.completed += 1
        self._backend.set_step(self.completed)
        self._traffic.begin_step(self.completed, after=at.calls)
        self.marks.append(StepMark(at.events, self.completed))
        self.flops.append(at.flops - sum(self.flops))
        if update is not None:
            self.updates.append(update)
            self._traffic.set_phase(RUN_PHASES.index("step"), update.begin.calls, at.calls)
        backward = self._backend.flops_of("backward")
        if self._phases.has_engine:
            forward = self._backend.flops_of("forward") + self._backend.flops_of("loss")
        else:  # nothing says where a forward pass begins
            stepping = self._backend.flops_of("step") + sum(
                end.flops - begin.flops for begin, end in self.updates
            )
            forward = at.flops - backward - stepping
        once = forward + backward - self._recomputing.flops
        (forward_before, once_before), self._flops_before = self._flops_before, (forward, once)
        self.model_flops.append(min(3 * (forward - forward_before), once - once_before))
        if self._time is not None and at.time is not None:
            self._time.mark(at.time)

    def _end_run(self) -> None:
        if self._last and self.completed >= self._last and self._are_over():
            self.stopped = True
            self._at_end()
            raise RehearsalComplete
