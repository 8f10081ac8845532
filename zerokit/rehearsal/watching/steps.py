"""The optimizer steps of a run, and its end after as many as were asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.recording import StepMark
from zerokit.rehearsal.watching.labels import Labels
from zerokit.rehearsal.watching.phases import Phases
from zerokit.rehearsal.watching.recomputing import Recomputing

if TYPE_CHECKING:
    from zerokit.rehearsal.timing.rank_time import RankTime
    from zerokit.rehearsal.watching.traffic import Traffic

_COUNTED = "count steps and end after the last"
_STEP = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "step", _COUNTED)
_BATCH = Patch("deepspeed.runtime.pipe.engine:PipelineEngine", "train_batch", _COUNTED)


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

    def install(self) -> None:
        """Follow DeepSpeed's engine, and torch's optimizers where no engine drives them."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        wrap(_STEP, self._step)
        wrap(_BATCH, self._step)
        register_optimizer_step_post_hook(self._end_plain_step)

    def _step(self, step: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        before = engine.global_steps
        result = step(engine, *arguments, **given)
        if engine.global_steps > before:
            self._labels.label_engines()
            self._end()
        return result

    def _end_plain_step(self, optimizer: Any, *_: Any) -> None:
        if not self._phases.has_engine:
            self._labels.label_plain(optimizer)
            self._end()

    def _end(self) -> None:
        self.completed += 1
        self._backend.set_step(self.completed)
        self._traffic.step = self.completed
        self.marks.append(StepMark(self._backend.event_count(), self.completed))
        self.flops.append(self._backend.flops - sum(self.flops))
        backward = self._backend.flops_of("backward")
        if self._phases.has_engine:
            forward = self._backend.flops_of("forward") + self._backend.flops_of("loss")
        else:  # nothing says where a forward pass begins
            forward = self._backend.flops - backward - self._backend.flops_of("step")
        once = forward + backward - self._recomputing.flops
        (forward_before, once_before), self._flops_before = self._flops_before, (forward, once)
        self.model_flops.append(min(3 * (forward - forward_before), once - once_before))
        if self._time is not None:
            self._time.mark()
        if self._last and self.completed >= self._last and self._are_over():
            self.stopped = True
            self._at_end()
            raise RehearsalComplete
