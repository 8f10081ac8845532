"""Defects of checkpoints, and of pipeline parallelism."""

from zerokit.lint.defect_conditions import ON_NVME, stage, written
from zerokit.lint.defects.defect import Defect

_UNIVERSAL = "checkpoint.load_universal"

DEFECTS = (
    Defect(
        id="universal-zero3-nodes",
        releases="0.14.5 .. 0.18.0",
        harm="wrong results",
        summary="The checkpoint does not convert or load, or its weights are loaded wrongly on several nodes",
        when=stage(3) & written(_UNIVERSAL, True),
        beyond="more ranks or nodes than before, or several sub-groups",
        at=_UNIVERSAL,
        sometimes=True,
        source="#7585, #7599, #7601",
    ),
    Defect(
        id="nvme-save-race",
        releases=".. 0.18.0",
        harm="crash",
        summary="All ranks copy their offloaded tensors into one folder of the checkpoint",
        when=stage(3) & ON_NVME,
        sometimes=True,
        source="#7549, #7613",
    ),
    Defect(
        id="nvme-resume",
        releases="0.18.0 ..",
        harm="wrong results",
        summary="Of the optimizer's part of a checkpoint only swap files are read: Adam begins anew, and "
        "weights of groups too small to be swapped are those that the run started from",
        beyond="the optimizer on NVMe, and the run resumes by another way than zerokit train",
        at="zero_optimization.offload_optimizer",
        instead="offload the optimizer to the CPU, or resume with zerokit train",
        source="engine.py load_checkpoint, introduced by #7613; measured",
    ),
    Defect(
        id="pipeline-backward",
        releases="0.18.3 .. 0.18.5",
        harm="stuck",
        summary="The backward pass does not run its hooks, and training gets stuck",
        beyond="a PipelineModule",
        sometimes=True,
        source="#7787, introduced by #7665",
    ),
    Defect(
        id="pipeline-repeated-scaling",
        releases="0.18.3 .. 0.19.3",
        harm="wrong results",
        summary="Every stage divides the gradients by the accumulation steps again",
        beyond="a PipelineModule of several stages with gradient_accumulation_steps above 1",
        source="#8152, #8154",
    ),
)
