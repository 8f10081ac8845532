"""Defects of training without GPUs, which no config shows."""

from zerokit.lint.defects.defect import Defect

DEFECTS = (
    Defect(
        id="gloo-stage12-step",
        releases="0.18.7 .. 0.19.0",
        harm="crash",
        summary="The optimizer's step fails: a view is modified in place",
        beyond="stage 1 or 2 on more than one rank without GPUs",
        source="#7948, introduced by #7828; measured",
    ),
    Defect(
        id="gloo-gather",
        releases=".. 0.19.8",
        harm="wrong results",
        summary="Parameters are used before they have arrived: weights become NaN or huge in some runs",
        beyond="stage 3 on more than one rank without GPUs",
        sometimes=True,
        source="deepspeed/runtime/zero/partition_parameters.py, _allgather_params_coalesced; measured",
    ),
)
