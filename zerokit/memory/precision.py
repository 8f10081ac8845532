"""What DeepSpeed 0.19.8 keeps per parameter when it trains with Adam, for each precision and ZeRO stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from zerokit.errors import ZerokitError, did_you_mean
from zerokit.memory.model_states import check_zero_stage

Precision = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter of each model state, before partitioning."""

    parameter: int
    gradient: int
    master: int
    """The optimizer's own copy of the parameters; 0 where it updates the parameters themselves."""
    moments: int
    source: str
    """The DeepSpeed file and function that makes it so."""

    @property
    def optimizer(self) -> int:
        """K of the ZeRO paper: the fp32 copy and the moments."""
        return self.master + self.moments


_MIXED_STAGE_0 = StateBytes(2, 2, 4, 8, "runtime/fp16/fused_optimizer.py FP16_Optimizer.__init__")
_MIXED_STAGE_1_2 = StateBytes(2, 2, 4, 8, "runtime/zero/stage_1_and_2.py DeepSpeedZeroOptimizer.__init__")
_MIXED_STAGE_3 = StateBytes(
    2, 2, 4, 8, "runtime/zero/stage3.py DeepSpeedZeroOptimizer_Stage3._create_fp32_partitions"
)
_FP32_STAGE_0 = StateBytes(4, 4, 0, 8, "runtime/engine.py DeepSpeedEngine._do_optimizer_sanity_check")
_FP32_STAGE_1_2 = StateBytes(4, 4, 4, 8, _MIXED_STAGE_1_2.source)
_FP32_STAGE_3 = StateBytes(4, 4, 4, 8, _MIXED_STAGE_3.source)

_TABLE: dict[Precision, tuple[StateBytes, StateBytes, StateBytes, StateBytes]] = {
    "bf16": (_MIXED_STAGE_0, _MIXED_STAGE_1_2, _MIXED_STAGE_1_2, _MIXED_STAGE_3),
    "fp16": (_MIXED_STAGE_0, _MIXED_STAGE_1_2, _MIXED_STAGE_1_2, _MIXED_STAGE_3),
    "fp32": (_FP32_STAGE_0, _FP32_STAGE_1_2, _FP32_STAGE_1_2, _FP32_STAGE_3),
}


def state_bytes(precision: str, zero_stage: int) -> StateBytes:
    """Bytes per parameter for Adam, with gradients accumulated in the parameters' own dtype.

    - bf16 and fp16: 2 + 2 + 12 at every stage. Without ZeRO, `FP16_Optimizer` wraps both.
    - fp32 without ZeRO: 4 + 4 + 8. The engine wraps nothing, Adam updates the parameters in place.
    - fp32 with ZeRO: 4 + 4 + 12. Stages 1 and 2 clone the partition before they convert its dtype, so
      parameters that are fp32 already get a second fp32 copy. Stage 3 means to share the storage, but
      compares a torch.device with the device's name, which is never equal, and clones as well.

    Raises:
        ZerokitError: an unknown precision, or a stage outside 0 to 3.
    """
    check_zero_stage(zero_stage)
    for known, by_stage in _TABLE.items():
        if precision == known:
            return by_stage[zero_stage]
    raise ZerokitError(f"'{precision}' is not a precision", hint=did_you_mean(precision, get_args(Precision)))
