"""What the replay of a training step asks of a ZeRO stage, and the case without ZeRO."""

from __future__ import annotations

from typing import Protocol

from zerokit.memory.allocator_blocks import block_bytes
from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.settings import Settings
from zerokit.memory.timeline import Timeline

GRADIENTS = "gradients"
NEW_GRADIENT = "gradient being made"
PARAMETERS = "parameters"
OPTIMIZER_STATES = "optimizer states"
STEP_GRADIENTS = "gradients in the optimizer's step"
OPTIMIZER_STEP = "temporary tensors of the optimizer"
FLAT_COPY = "flattened copy of gradients to reduce"

ALLREDUCE_ELEMENTS = 500_000_000
"""Gradients that stage 0 flattens at a time: runtime/engine.py MEMORY_OPT_ALLREDUCE_SIZE, no key sets it."""


class Stage(Protocol):
    """A stage, as far as the GPU's memory depends on it."""

    def start(self) -> None:
        """Build the optimizer, and hold what training begins with."""

    def make_states(self) -> None:
        """Hold the optimizer states that the first step makes."""

    def begin_pass(self, *, boundary: bool) -> None:
        """A forward pass begins; at a boundary the optimizer steps after its backward pass."""

    def fetch(self, step: ModuleCall, *, forward: bool) -> None:
        """A module is about to run."""

    def release(self, step: ModuleCall, *, forward: bool) -> None:
        """A module has run."""

    def save(self, step: ModuleCall) -> None:
        """Autograd keeps the weight of a module that has run forward."""

    def unsave(self, step: ModuleCall) -> None:
        """Autograd gives it back."""

    def ready(self, parameter: Parameter) -> None:
        """A gradient has been made, and is held as `NEW_GRADIENT`."""

    def end_backward(self, *, boundary: bool) -> None:
        """All gradients of a micro-batch are there; at a boundary the optimizer steps next."""

    def step(self) -> None:
        """The optimizer's step."""


class Unpartitioned:
    """Stage 0: every rank holds everything."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        self._timeline, self._layout, self._settings = timeline, layout, settings
        self._made: set[int] = set()

    def start(self) -> None:
        """FP16_Optimizer clones and flattens the trained parameters, in `__init__` (fused_optimizer.py)."""
        timeline, settings = self._timeline, self._settings
        e, trained = settings.parameter_bytes, self._layout.num_trainable
        # Parameters are tensors of their own unless the optimizer flattens them.
        flat = settings.wrapper == "fp16"
        timeline.hold(
            PARAMETERS,
            sum(
                e * one.elements if flat and one.trainable else block_bytes(e * one.elements)
                for one in self._layout.parameters
            ),
        )
        if settings.wrapper == "fp16":
            timeline.spike("clones of parameters", 2 * e * trained)
        if settings.has_master:
            timeline.hold(OPTIMIZER_STATES, settings.master_bytes * trained)
            timeline.spike(OPTIMIZER_STEP, settings.master_bytes * trained)
        if settings.has_master:
            # The first step is run at once, with gradients of zeros.
            self._hold_states()
            extra = settings.optimizer.step * settings.moment_bytes
            timeline.spike(OPTIMIZER_STEP, round((settings.master_bytes + extra) * trained))

    def make_states(self) -> None:
        if not self._settings.has_master:
            self._hold_states()

    def _hold_states(self) -> None:
        self._timeline.hold(OPTIMIZER_STATES, self._settings.state_bytes * self._layout.num_trainable)

    def begin_pass(self, *, boundary: bool) -> None: ...

    def fetch(self, step: ModuleCall, *, forward: bool) -> None: ...

    def release(self, step: ModuleCall, *, forward: bool) -> None: ...

    def save(self, step: ModuleCall) -> None: ...

    def unsave(self, step: ModuleCall) -> None: ...

    def ready(self, parameter: Parameter) -> None:
        """Kept, or added to what is kept and freed."""
        number = self._settings.parameter_bytes * parameter.elements
        self._timeline.free(NEW_GRADIENT, number)
        if id(parameter) not in self._made:
            self._made.add(id(parameter))
            self._timeline.hold(GRADIENTS, number)

    def end_backward(self, *, boundary: bool) -> None:
        """The engine flattens and reduces up to the first gradient that passes 5e8 elements."""
        if not boundary:
            return
        numbers = [parameter.elements for parameter in self._layout.trainable]
        for group in _groups(numbers, ALLREDUCE_ELEMENTS):
            if len(group) > 1:
                self._timeline.spike(FLAT_COPY, self._settings.parameter_bytes * sum(group))

    def step(self) -> None:
        timeline, settings = self._timeline, self._settings
        trained = self._layout.num_trainable
        if settings.wrapper == "fp16":
            timeline.spike(STEP_GRADIENTS, 2 * settings.master_bytes * trained)
        held = settings.master_bytes * trained if settings.has_master else 0
        if settings.wrapper == "fp16":
            timeline.free_all(GRADIENTS)
        timeline.hold(STEP_GRADIENTS, held)
        timeline.spike(OPTIMIZER_STEP, round(settings.optimizer.step * settings.moment_bytes * trained))
        timeline.free_all(STEP_GRADIENTS)
        timeline.free_all(GRADIENTS)
        self._made.clear()


def _groups(numbers: list[int], most: int) -> list[list[int]]:
    """Cut as `allreduce_no_retain` does: a group ends with the number that passes `most`."""
    groups: list[list[int]] = [[]]
    for number in numbers:
        groups[-1].append(number)
        if sum(groups[-1]) > most:
            groups.append([])
    return [group for group in groups if group]
