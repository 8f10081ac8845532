"""Defects of bf16 and fp16 under ZeRO."""

from zerokit.lint.defect_conditions import ADAPTERS, BF16, CLIPS, FP16, SEVERAL_GPUS, on, stage
from zerokit.lint.defects.defect import Defect

_QUANTIZED = "zero_optimization.zero_quantized_weights"

DEFECTS = (
    Defect(
        id="zero1-fp16-overflow",
        releases="0.17.1 .. 0.18.0",
        harm="wrong results",
        summary="Ranks do not tell each other of an overflow: some skip the step and others do not, so "
        "weights and loss scales differ",
        when=stage(1) & FP16 & SEVERAL_GPUS,
        at="fp16.enabled",
        instead="use stage 2",
        sometimes=True,
        source="#7568, #7580, introduced by #6976",
    ),
    Defect(
        id="zero12-infinite-norm",
        releases=".. 0.16.6",
        harm="wrong results",
        summary="A gradient norm of infinity becomes NaN, and clipping makes all weights NaN",
        when=stage(1, 2) & FP16 & CLIPS,
        at="gradient_clipping",
        sometimes=True,
        source="#5242, #7171",
    ),
    Defect(
        id="zero3-mixed-dtypes",
        releases="0.19.2 .. 0.19.3",
        harm="crash",
        summary="Persistent parameters of different number formats are gathered into buffers of one",
        when=stage(3) & (BF16 | FP16) & ADAPTERS,
        beyond="adapters in fp32, as PEFT makes them",
        sometimes=True,
        source="#8072, #8073, introduced by #8066",
    ),
    Defect(
        id="zero3-quantized-bf16",
        releases=".. 0.19.6",
        harm="wrong results",
        summary="Weights in bf16 are read as fp16 when they are quantised, and come back as fp16: wrong "
        "values, then an error about number formats",
        when=stage(3) & BF16 & on(_QUANTIZED),
        at=_QUANTIZED,
        instead="remove the key",
        source="#7775, #8215",
    ),
)
