"""The phase of training, by DeepSpeed's engine, or by torch without an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.reporting.phases import RunPhase

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_MAKE_ENGINE = Patch(_ENGINE, "__init__", "see the phase init")
_FORWARD = Patch(_ENGINE, "forward", "see the phases forward and loss")
_BACKWARD = Patch(_ENGINE, "backward", "see the phase backward")
_STEP = Patch(_ENGINE, "step", "see the phase step")
_TAKE_STEP = Patch(_ENGINE, "_take_model_step", "see the phase step of a pipeline, which calls no step()")
_LOSS = Patch("torch.nn.functional", "cross_entropy", "see the phase loss")
_DDP_FORWARD = Patch(
    "torch.nn.parallel.distributed:DistributedDataParallel", "_pre_forward", "see the phase forward"
)
_RUN_BACKWARD = Patch("torch.autograd", "backward", "see the phase backward without an engine")


class Phases:
    """Sets the phase of the run in the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.has_engine = False
        """Whether the script has begun to make a DeepSpeed engine. (At stage 0, that has its optimizer make
        its states by a step over zeros, which is none of the run's.)"""

    def install(self) -> None:
        """Follow DeepSpeed's engine, and torch's own loss, backward pass and optimizers."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        wrap(_MAKE_ENGINE, self._make_engine)
        wrap(_FORWARD, self._during("forward", then="loss"))
        wrap(_BACKWARD, self._during("backward", then="between"))
        wrap(_STEP, self._during("step", then="between"))
        wrap(_TAKE_STEP, self._take_step)
        wrap(_LOSS, self._from(("forward",), "loss"))
        wrap(_RUN_BACKWARD, self._run_backward)
        wrap(_DDP_FORWARD, self._ddp_forward)
        register_optimizer_step_pre_hook(lambda *_: self._plain_step("step"))
        register_optimizer_step_post_hook(lambda *_: self._plain_step("between"))

    def _make_engine(self, initialize: Any, *arguments: Any, **given: Any) -> None:
        self._backend.phase = "init"
        self.has_engine = True
        initialize(*arguments, **given)
        self._backend.phase = "between"

    def _during(self, phase: RunPhase, *, then: RunPhase) -> Callable[..., Any]:
        def watched(method: Any, *arguments: Any, **given: Any) -> Any:
            if self._backend.phase == "evaluation":
                return method(*arguments, **given)
            self._backend.phase = phase
            result = method(*arguments, **given)
            self._backend.phase = then
            return result

        return watched

    def _take_step(self, take: Any, *arguments: Any, **given: Any) -> Any:
        then: RunPhase = "step" if self._backend.phase == "step" else "between"
        return self._during("step", then=then)(take, *arguments, **given)

    def _from(self, phases: tuple[RunPhase, ...], then: RunPhase) -> Callable[..., Any]:
        def watched(function: Any, *arguments: Any, **given: Any) -> Any:
            if self._backend.phase in phases:
                self._backend.phase = then
            return function(*arguments, **given)

        return watched

    def _ddp_forward(self, prepare: Any, *arguments: Any, **given: Any) -> Any:
        import torch

        if not self.has_engine and torch.is_grad_enabled() and self._backend.phase in ("init", "between"):
            self._backend.phase = "forward"
        return prepare(*arguments, **given)

    def _run_backward(self, run: Any, *arguments: Any, **given: Any) -> Any:
        if self.has_engine:
            return self._from(("forward", "loss", "between"), "backward")(run, *arguments, **given)
        if self._backend.phase == "evaluation":
            return run(*arguments, **given)
        # Without an engine init ends at the first backward pass at the latest.
        self._backend.phase = "backward"
        result = run(*arguments, **given)
        self._backend.phase = "between"
        return result

    def _plain_step(self, phase: RunPhase) -> None:
        """A step of a torch optimizer that no DeepSpeed engine drives."""
        if not self.has_engine:
            self._backend.phase = phase
