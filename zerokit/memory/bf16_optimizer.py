"""Stage 1 in bf16 with gradients accumulated in fp32: DeepSpeed uses its BF16_Optimizer.

Source: deepspeed/runtime/bf16_optimizer.py, chosen by `DeepSpeedEngine._do_optimizer_sanity_check`.
"""

from __future__ import annotations

from zerokit.memory.layout import Layout
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.settings import Settings
from zerokit.memory.stage import GRADIENTS, FullGradients
from zerokit.memory.stage_1_2 import FLAT, slices_of
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)


class Bf16Optimizer(FullGradients):
    """One rank: optimizer states are partitioned; gradients and their fp32 copies are not."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        super().__init__(timeline, layout, settings)
        self.partition = slices_of(layout, settings.zero_ranks).partition

    def start(self) -> None:
        """`_setup_for_real_optimizer`."""
        timeline, settings, e = self._timeline, self._settings, self._settings.parameter_bytes
        padded = self.partition * settings.zero_ranks
        timeline.hold(KINDS.PARAMETERS, e, self._layout.num_parameters)
        timeline.spike(FLAT, e, padded)
        timeline.hold(KINDS.PARAMETERS, e, padded - self._layout.num_trainable)
        timeline.hold(KINDS.MASTER, settings.master_bytes, self.partition)
        timeline.spike(KINDS.CLONES, e, self.partition)
        timeline.hold(KINDS.FP32_GRADIENTS, settings.accumulation_bytes, padded)

    def make_states(self) -> None:
        OptimizerStates(self._settings, "Φₜ/N").hold(self._timeline, [self.partition])

    def end_backward(self, *, boundary: bool) -> None:
        """`update_hp_grads` casts gradients one by one; the flat fp32 buffer is reduced in place."""
        self._timeline.spike(KINDS.CAST, self._settings.accumulation_bytes, self._largest)

    @property
    def _largest(self) -> int:
        return max((one.elements for one in self._layout.trainable), default=0)

    def step(self) -> None:
        self._timeline.spike(KINDS.NORM, 8, self._largest)
        temporary = self._settings.optimizer.kind_of("TEMPORARY", "Φₜ/N")
        self._timeline.spike(temporary, self._settings.temporary_bytes, self.partition)
        self._timeline.free_all(GRADIENTS)
        self._made.clear()
