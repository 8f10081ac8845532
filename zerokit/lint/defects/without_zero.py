"""Defects of 16 bits in stage 0, where other optimizer wrappers are used than under ZeRO."""

from zerokit.lint.defect_conditions import ADAPTERS, BF16, FP16, FUSED_ADAM, OTHER_THAN_FUSED_ADAM, stage
from zerokit.lint.defects.defect import Defect

_STAGE_1 = "use ZeRO stage 1"

FP16_UNSCALED = Defect(
    id="stage0-fp16-unscaled",
    releases="0.18.3 ..",
    harm="wrong results",
    summary="The loss is not multiplied by the loss scale, but gradients are divided by it: updates are "
    "thousands of times too small",
    rule="fp16-without-zero",
    instead=_STAGE_1,
    source="#8393, introduced by #7665; measured",
)

DEFECTS = (
    Defect(
        id="stage0-fp16-no-step",
        releases="0.17.6 .. 0.18.2",
        harm="wrong results",
        summary="The optimizer never takes a step: the model does not learn",
        when=stage(0) & FP16 & FUSED_ADAM,
        at="fp16.enabled",
        instead=_STAGE_1,
        source="#7645, introduced by #7515",
    ),
    FP16_UNSCALED,
    Defect(
        id="stage0-bf16-accumulates",
        releases="0.17.6 .. 0.18.6",
        harm="wrong results",
        summary="Gradients are not reset after a step, so those of all steps add up; since 0.18.3 they are "
        "also divided by a loss scale that was never applied",
        when=stage(0) & BF16 & OTHER_THAN_FUSED_ADAM,
        at="bf16.enabled",
        instead=_STAGE_1,
        source="#7837, #7839, introduced by #7515; measured",
    ),
    Defect(
        id="stage0-bf16-checkpoint",
        releases="0.17.6 .. 0.18.5",
        harm="wrong results",
        summary="The optimizer's state is not in the checkpoint; it starts anew",
        when=stage(0) & BF16,
        beyond="the run resumes from a checkpoint",
        at="bf16.enabled",
        instead=_STAGE_1,
        severity="warning",
        source="#7786, introduced by #7515",
    ),
    Defect(
        id="stage0-frozen-memory",
        releases="0.17.6 .. 0.19.1",
        harm="memory",
        summary="Master weights are kept for frozen parameters too, 4 bytes each",
        when=stage(0) & (BF16 | FP16) & ADAPTERS,
        instead=_STAGE_1,
        source="#8029, introduced by #7515",
    ),
)
