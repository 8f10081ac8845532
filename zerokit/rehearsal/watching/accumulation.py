"""Gradients that DeepSpeed loses because a script accumulates them in another way than its engine."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.watching.watcher import Watcher

_ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
_SEEN = "see backward passes before a step"
# The end of every backward pass, except in no_sync.
_REDUCE = Patch(_ENGINE, "allreduce_gradients", _SEEN)
_FORWARD = Patch(_ENGINE, "forward", _SEEN)
_STEP = Patch(_ENGINE, "step", _SEEN)
_DISCARD = Patch("deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer", "zero_grad", _SEEN)
_KEEPS_LAST = (1, 2)
"""ZeRO stages in which each backward pass at a boundary replaces the gradients of the pass before it
(`averaged_gradients` in stage_1_and_2.py). Stage 3 adds up until zero_grad (micro_step_id in stage3.py);
without ZeRO autograd adds up."""


class Accumulation(Watcher):
    """Counts the backward passes of each engine before its step()."""

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[Any, Counter[bool]] = WeakKeyDictionary()
        """Of each engine since its last step(), by whether they were at an accumulation boundary."""
        self._forwards: Counter[int] = Counter()
        """Forward passes of each engine since its last step(), by identity."""
        self.mistakes: list[str] = []

    def on_process_start(self) -> None:
        wrap(_FORWARD, self._forward)
        wrap(_REDUCE, self._reduce)
        wrap(_STEP, self._step)
        wrap(_DISCARD, self._discard)

    def _forward(self, forward: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        self._forwards[id(engine)] += engine.training
        return forward(engine, *arguments, **given)

    def _reduce(self, reduce: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        passes = self._passes.setdefault(engine, Counter())
        passes[bool(engine.is_gradient_accumulation_boundary())] += 1
        return reduce(engine, *arguments, **given)

    def _discard(self, discard: Any, optimizer: Any, *arguments: Any, **given: Any) -> Any:
        for engine, passes in self._passes.items():
            if engine.optimizer is optimizer:
                passes.clear()
        return discard(optimizer, *arguments, **given)

    def _step(self, step: Any, engine: Any, *arguments: Any, **given: Any) -> Any:
        passes, forwards = self._passes.pop(engine, None), self._forwards.pop(id(engine), 0)
        # Without managed_gradient_accumulation step() itself is the boundary.
        if passes and not self.mistakes and getattr(engine, "managed_gradient_accumulation", lambda: True)():
            self._judge(engine, passes, forwards)
        return step(engine, *arguments, **given)

    def _judge(self, engine: Any, passes: Counter[bool], forwards: int) -> None:
        stage, steps = engine.zero_optimization_stage(), engine.gradient_accumulation_steps()
        at_boundary, count = passes[True], sum(passes.values())
        # BF16_Optimizer, which stage 1 has with gradients in fp32, adds up.
        keeps_last = stage in _KEEPS_LAST and hasattr(engine.optimizer, "averaged_gradients")
        is_lost = keeps_last and at_boundary > 1
        # Where the script sets the boundary itself, all passes before a step() are one accumulation.
        is_own = getattr(engine, "_is_gradient_accumulation_boundary", None) is not None
        is_one_batch = forwards < count  # with several losses
        if not is_lost and not (count == steps > 1 and not is_own and not is_one_batch):
            return
        seen = f"{script_line()}: the script calls backward() {count} times before each step()"
        if is_lost:
            why = f"and gradient_accumulation_steps is {steps}" + (
                ", so that DeepSpeed takes each for the last one" if steps == 1 else ""
            )
            effect = f"gradients are lost: {seen}, {why}: ZeRO stage {stage} keeps those of the last one only"
        else:
            effect = (
                f"gradients are accumulated twice: {seen}, and DeepSpeed counts calls of step(): with "
                f"gradient_accumulation_steps {steps} it updates parameters after {count * steps} backward()"
            )
        fixes = [
            "call engine.set_gradient_accumulation_boundary(False) before the first forward pass and (True) "
            "before the last",
            "add the losses up and call backward() once",
        ]
        if is_one_batch:
            fixes = fixes[-1:]
        elif steps in (1, count):
            fixes.insert(
                0,
                f'set "gradient_accumulation_steps": {count}, call step() after each backward() and do not '
                "divide the loss yourself",
            )
        if is_lost:
            fixes.append("use ZeRO stage 3")
        first, *others = fixes
        self.mistakes.append("; or ".join([f"{effect}. {first[0].upper()}{first[1:]}", *others]))
