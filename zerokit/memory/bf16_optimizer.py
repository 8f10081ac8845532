"""Stage 1 in bf16 with gradients accumulated in fp32: DeepSpeed uses its BF16_Optimizer.

Source: deepspeed/runtime/bf16_optimizer.py, chosen by `DeepSpeedEngine._do_optimizer_sanity_check`.
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.memory import stage, stage_1_2
from zerokit.memory.layout import Layout
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.settings import Settings
from zerokit.memory.stage import GRADIENTS, FullGradients
from zerokit.memory.stage_1_2 import FLAT, slices_of
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Timeline

_BF16 = "deepspeed/runtime/bf16_optimizer.py"

PARAMETERS = replace(stage.PARAMETERS, source=f"{_BF16} _setup_for_real_optimizer")
CLONES = replace(stage_1_2.CLONES, source=f"{_BF16} _setup_for_real_optimizer")
MASTER = replace(stage_1_2.MASTER, source=f"{_BF16} _setup_for_real_optimizer")
NORM = replace(stage_1_2.NORM, count="largest parameter", source=f"{_BF16} step")
FP32_GRADIENTS = TermKind(
    "fp32 gradients of the whole model",
    "gradients",
    unit="g",
    count="Φₜ",
    source=f"{_BF16} _setup_for_real_optimizer",
    certainty="exact",
)
CAST = replace(
    FP32_GRADIENTS,
    name="fp32 copy of a gradient",
    count="largest parameter",
    source=f"{_BF16} _update_hp_grad",
)


class Bf16Optimizer(FullGradients):
    """One rank: optimizer states are partitioned; gradients and their fp32 copies are not."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        super().__init__(timeline, layout, settings)
        self.partition = slices_of(layout, settings.world_size).partition

    def start(self) -> None:
        """`_setup_for_real_optimizer`."""
        timeline, settings, e = self._timeline, self._settings, self._settings.parameter_bytes
        padded = self.partition * settings.world_size
        timeline.hold(PARAMETERS, e, self._layout.num_parameters)
        timeline.spike(FLAT, e, padded)
        timeline.hold(PARAMETERS, e, padded - self._layout.num_trainable)
        timeline.hold(MASTER, settings.master_bytes, self.partition)
        timeline.spike(CLONES, e, self.partition)
        timeline.hold(FP32_GRADIENTS, settings.accumulation_bytes, padded)

    def make_states(self) -> None:
        OptimizerStates(self._settings, "Φₜ/N").hold(self._timeline, [self.partition])

    def end_backward(self, *, boundary: bool) -> None:
        """`update_hp_grads` casts gradients one by one; the flat fp32 buffer is reduced in place."""
        self._timeline.spike(CAST, self._settings.accumulation_bytes, self._largest)

    @property
    def _largest(self) -> int:
        return max((one.elements for one in self._layout.trainable), default=0)

    def step(self) -> None:
        self._timeline.spike(NORM, 8, self._largest)
        temporary = self._settings.optimizer.temporary("Φₜ/N")
        self._timeline.spike(temporary, self._settings.temporary_bytes, self.partition)
        self._timeline.free_all(GRADIENTS)
        self._made.clear()
