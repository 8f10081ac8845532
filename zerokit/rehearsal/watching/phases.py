"""The phase of training, by DeepSpeed's engine, or by torch without an engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.watching.watcher import Events, Watcher
from zerokit.reporting.phases import RunPhase

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_FORWARD = Patch(_ENGINE, "forward", "see the phases forward and loss")
_BACKWARD = Patch(_ENGINE, "backward", "see the phase backward")
_STEP = Patch(_ENGINE, "step", "see the phase step")
_TAKE_STEP = Patch(_ENGINE, "_take_model_step", "see the phase step of a pipeline, which calls no step()")
_LOSS = Patch("torch.nn.functional", "cross_entropy", "see the phase loss")
_MAKE_OPTIMIZER = Patch("torch.optim.optimizer:Optimizer", "__init__", "see where init may end")
_RUN_BACKWARD = Patch("torch.autograd", "backward", "see the phase backward without an engine")
_GRAD_MODE = "torch.autograd.grad_mode:enable_grad"
_ENTER = Patch(_GRAD_MODE, "__enter__", "see what checkpointing recomputes")
_EXIT = Patch(_GRAD_MODE, "__exit__", "see what checkpointing recomputes")


class Phases(Watcher):
    """Sets the phase of the run in the backend."""

    def __init__(self, backend: Backend, events: Events) -> None:
        self._backend = backend
        self._events = events
        self._hook: Any = None
        """Sees the next call of a module without an engine."""

    def on_process_start(self) -> None:
        wrap(_FORWARD, self._during("forward", then="loss"))
        wrap(_BACKWARD, self._during("backward", then="between"))
        wrap(_STEP, self._during("step", then="between"))
        wrap(_TAKE_STEP, self._take_step)
        wrap(_LOSS, self._from(("forward",), "loss"))
        wrap(_RUN_BACKWARD, self._run_backward)
        wrap(_MAKE_OPTIMIZER, self._make_optimizer)

    def on_engine_begin(self, model: Any) -> None:
        self._backend.phase = "init"

    def on_engine_end(self, engine: Any) -> None:
        self._backend.phase = "between"

    def on_optimizer_step_begin(self, optimizer: Any) -> None:
        if not self._events.has_engine:
            self._backend.phase = "step"

    def on_optimizer_step_end(self, optimizer: Any) -> None:
        if not self._events.has_engine:
            self._backend.phase = "between"
            self._await_forward()

    # ---- without an engine, a forward pass is the outermost call of a module that trains, whatever wraps it
    def _make_optimizer(self, make: Any, *arguments: Any, **given: Any) -> None:
        make(*arguments, **given)
        self._await_forward()  # before, a script may call modules to set them up

    def _await_forward(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._hook is None and not self._events.has_engine:
            warnings.filterwarnings("ignore", r"Using `torch\.compile.* global hooks")
            # Up to the forward pass only: such hooks make calls slow, and a compiler would trace them.
            self._hook = register_module_forward_pre_hook(self._call_module)

    def _call_module(self, module: Any, _: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if not self._events.has_engine:
            trains = torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters())
            if not trains or self._backend.phase not in ("init", "between"):
                return
            self._backend.phase = "forward"
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

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

    def _run_backward(self, run: Any, *arguments: Any, **given: Any) -> Any:
        if self._events.has_engine:
            return self._from(("forward", "loss", "between"), "backward")(run, *arguments, **given)
        if self._backend.phase == "evaluation":
            return run(*arguments, **given)
        # Without an engine init ends at the first backward pass at the latest.
        self._backend.phase = "backward"
        result = run(*arguments, **given)
        self._backend.phase = "between"
        self._await_forward()
        return result


class Recomputing(Watcher):
    """Counts the floating-point operations that activation checkpointing repeats in backward passes.

    Autograd is off in a backward pass, and checkpointing of whichever library turns it on. A Function inside
    turns it off again for its own forward, so that a matmul cannot show it: ZeRO-3's linear layer is one.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.flops = 0.0
        self._outermost: Any = None
        self._before = 0.0

    def on_process_start(self) -> None:
        wrap(_ENTER, self._begin)
        wrap(_EXIT, self._end)

    def _begin(self, enter: Any, context: Any) -> None:
        enter(context)
        if self._outermost is None and self._backend.phase == "backward" and not context.prev:
            self._outermost, self._before = context, self._backend.flops

    def _end(self, leave: Any, context: Any, *raised: Any) -> None:
        leave(context, *raised)
        if context is self._outermost:
            self.flops += self._backend.flops - self._before
            self._outermost = None
