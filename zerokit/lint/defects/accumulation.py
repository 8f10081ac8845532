"""Defects of gradient accumulation, and of the number format in which gradients add up."""

from zerokit.config.batch_sizes import STEPS
from zerokit.lint.defect_conditions import (
    BF16,
    BF16_OPTIMIZER,
    FP16,
    FP32_GRADIENTS,
    NOT_OFFLOADED,
    OFFLOADED,
    SEVERAL_GPUS,
    accumulates_over,
    off,
    stage,
)
from zerokit.lint.defects.defect import Defect

_FORMAT = "data_types.grad_accum_dtype"

DEFECTS = (
    Defect(
        id="zero2-accumulation",
        releases="0.17.6 .. 0.18.3",
        harm="wrong results",
        summary="Only the last micro batch of each step counts; the gradients of the others are dropped",
        when=stage(2) & accumulates_over(1) & NOT_OFFLOADED,
        at=STEPS,
        instead="use stage 1",
        source="#7718, introduced by #7509; measured",
    ),
    Defect(
        id="zero2-offload-accumulation",
        releases="0.15.2 .. 0.19.0",
        harm="wrong results",
        summary="Only the first and the last micro batch of each step count; the gradients of those between "
        "are dropped",
        when=stage(2) & accumulates_over(2) & OFFLOADED,
        at=STEPS,
        instead="accumulate at most 2 steps",
        source="#7967, introduced by #6550; measured",
    ),
    Defect(
        id="zero2-accumulation-format",
        releases=".. 0.19.8",
        harm="wrong results",
        summary="data_types.grad_accum_dtype has no effect: gradients are accumulated in the model's number "
        "format",
        when=stage(2) & accumulates_over(1) & NOT_OFFLOADED & (BF16 | FP16) & FP32_GRADIENTS,
        at=_FORMAT,
        instead="use stage 1",
        source="deepspeed/runtime/zero/stage_1_and_2.py, use_grad_accum_attribute; measured",
    ),
    Defect(
        id="zero1-not-divided",
        releases="0.17.6 .. 0.18.5",
        harm="memory",
        summary="The optimizer's state is not divided over the ranks: the stage is taken for 0",
        when=BF16_OPTIMIZER,
        at=_FORMAT,
        instead="use stage 2",
        source="#7788, introduced by #7515; measured",
    ),
    Defect(
        id="bf16-optimizer-accumulation",
        releases="0.18.5 .. 0.19.0",
        harm="wrong results",
        summary="The gradients of the last micro batch are not averaged over the ranks, so weights differ "
        "between ranks",
        when=BF16_OPTIMIZER & SEVERAL_GPUS & off("bf16.immediate_grad_update"),
        at=_FORMAT,
        instead='set "bf16.immediate_grad_update" to true',
        source="#7985; measured",
    ),
)
