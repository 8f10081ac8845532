"""Defects of single optimizers."""

from zerokit.lint.defect_conditions import (
    FUSED_ADAM,
    MORE_THAN_AN_INT_COUNTS,
    OFFLOADED,
    SEVERAL_GPUS,
    off,
    on,
    optimizer,
    stage,
)
from zerokit.lint.defects.defect import Defect

_TYPE = "optimizer.type"
_UNTESTED = "zero_allow_untested_optimizer"
_REDUCE_SCATTER = "zero_optimization.reduce_scatter"

DEFECTS = (
    Defect(
        id="fused-adam-large",
        releases=".. 0.18.1",
        harm="wrong results",
        summary="The element count overflows, and parameters are not updated",
        when=stage(0, 1, 2) & FUSED_ADAM & MORE_THAN_AN_INT_COUNTS,
        beyond="they are in one parameter group",
        at=_TYPE,
        source="#7639, #7640",
    ),
    Defect(
        id="muon-untested",
        releases="0.17.6 .. 0.18.5",
        harm="crash",
        summary="DeepSpeed refuses its own Muon as an untested optimizer",
        when=optimizer("Muon") & stage(1, 2, 3) & off(_UNTESTED),
        at=_TYPE,
        instead=f'set "{_UNTESTED}" to true',
        source="#7802",
    ),
    Defect(
        id="zero12-muon-reduce-scatter",
        releases="0.17.6 .. 0.19.3",
        harm="wrong results",
        summary="Matrices that lie on several ranks are updated from gradients that are not reduced, each "
        "rank in its own way",
        when=optimizer("Muon") & stage(1, 2) & SEVERAL_GPUS & on(_REDUCE_SCATTER),
        at=_REDUCE_SCATTER,
        instead='set "reduce_scatter" to false',
        source="#7807, #8090, #8141",
    ),
    Defect(
        id="muon-offload",
        releases="0.17.6 .. 0.19.8",
        harm="wrong results",
        summary="Muon's orthogonalisation is left out: the weights follow the plain gradient",
        when=optimizer("Muon") & stage(1, 2) & OFFLOADED,
        beyond="since 0.19.3 reduce_scatter is false, for DeepSpeed refuses it otherwise",
        at="zero_optimization.offload_optimizer",
        instead="use stage 3, or do not offload",
        source="deepspeed/runtime/zero/stage_1_and_2.py, get_flat_partition",
    ),
    Defect(
        id="muon-parameter-groups",
        releases="0.17.6 .. 0.19.7",
        harm="wrong results",
        summary="The groups' settings are dropped, such as no weight decay on biases",
        beyond="the optimizer Muon with parameter groups of the script's own",
        source="deepspeed/runtime/engine.py, _configure_basic_optimizer",
    ),
)
