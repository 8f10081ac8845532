"""Stage 1 in bf16 with gradients accumulated in fp32: DeepSpeed runs its BF16_Optimizer instead.

Source: deepspeed/runtime/bf16_optimizer.py, chosen by `DeepSpeedEngine._do_optimizer_sanity_check`.
"""

from __future__ import annotations

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.settings import Settings
from zerokit.memory.stage import (
    GRADIENTS,
    NEW_GRADIENT,
    OPTIMIZER_STATES,
    OPTIMIZER_STEP,
    PARAMETERS,
)
from zerokit.memory.stage_1_2 import FLAT, NORM, slices_of
from zerokit.memory.timeline import Timeline

WHOLE_GRADIENTS = "fp32 gradients of the whole model"
CAST = "fp32 copy of a gradient"


class WholeGradients:
    """One rank: states are divided, fp32 gradients are not."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        self._timeline, self._layout, self._settings = timeline, layout, settings
        self.partition = slices_of(layout, settings.world_size).partition
        self._made: set[int] = set()

    def start(self) -> None:
        """`_setup_for_real_optimizer`."""
        timeline, settings, e = self._timeline, self._settings, self._settings.parameter_bytes
        flat = self.partition * settings.world_size
        timeline.hold(PARAMETERS, e * self._layout.num_parameters)
        timeline.spike(FLAT, e * flat)
        timeline.hold(PARAMETERS, e * (flat - self._layout.num_trainable))
        timeline.spike(OPTIMIZER_STATES, (e + settings.master_bytes) * self.partition)
        timeline.hold(OPTIMIZER_STATES, settings.master_bytes * self.partition)
        timeline.hold(WHOLE_GRADIENTS, settings.accumulation_bytes * flat)

    def make_states(self) -> None:
        self._timeline.hold(OPTIMIZER_STATES, self._settings.state_bytes * self.partition)

    def begin_pass(self, *, boundary: bool) -> None: ...

    def fetch(self, step: ModuleCall, *, forward: bool) -> None: ...

    def release(self, step: ModuleCall, *, forward: bool) -> None: ...

    def save(self, step: ModuleCall) -> None: ...

    def unsave(self, step: ModuleCall) -> None: ...

    def ready(self, parameter: Parameter) -> None:
        """Of the second micro-batch on, added to the one that is kept and set to zero in between."""
        number = self._settings.parameter_bytes * parameter.elements
        self._timeline.free(NEW_GRADIENT, number)
        if id(parameter) not in self._made:
            self._made.add(id(parameter))
            self._timeline.hold(GRADIENTS, number)

    def end_backward(self, *, boundary: bool) -> None:
        """`update_hp_grads` casts one gradient after the other; the flat fp32 buffer is reduced as it is."""
        self._timeline.spike(CAST, self._settings.accumulation_bytes * self._largest)

    @property
    def _largest(self) -> int:
        return max((one.elements for one in self._layout.trainable), default=0)

    def step(self) -> None:
        self._timeline.spike(NORM, 8 * self._largest)
        temporary = self._settings.optimizer.step * self._settings.moment_bytes * self.partition
        self._timeline.spike(OPTIMIZER_STEP, round(temporary))
        self._timeline.free_all(GRADIENTS)
        self._made.clear()
