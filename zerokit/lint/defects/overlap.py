"""Defects of communication that runs beside the backward pass."""

from zerokit.lint.defect_conditions import on, recipe_trains_with, stage
from zerokit.lint.defects.defect import Defect

_KEY = "zero_optimization.overlap_comm"
_OVERLAPS = stage(1, 2) & on(_KEY)
_IN_ONE_BUFFER = _OVERLAPS & on("zero_optimization.contiguous_gradients")
_NO_OVERLAP = 'set "overlap_comm" to false'

DEFECTS = (
    Defect(
        id="overlap-wait",
        releases=".. 0.14.3",
        harm="wrong results",
        summary="A gradient bucket is written again while it is still being reduced, if communication takes "
        "longer than computation",
        when=_OVERLAPS,
        at=_KEY,
        instead=_NO_OVERLAP,
        sometimes=True,
        source="#5606",
    ),
    Defect(
        id="overlap-buffer-index",
        releases="0.17.2 .. 0.17.5",
        harm="wrong results",
        summary="Both gradient buckets use one buffer, which is written again while it is still being "
        "reduced: the loss falls to 0 or becomes NaN after a few steps",
        when=_IN_ONE_BUFFER,
        at=_KEY,
        instead=_NO_OVERLAP,
        severity="error",
        sometimes=True,
        source="#7188, #7371, #7805",
    ),
    Defect(
        id="overlap-does-not-overlap",
        releases="0.17.5 .. 0.18.5",
        harm="speed",
        summary="Communication does not overlap with the backward pass: each bucket is waited for",
        when=_IN_ONE_BUFFER,
        at=_KEY,
        source="#7804, #7805",
    ),
    Defect(
        id="overlap-buffer-lifetime",
        releases=".. 0.19.0",
        harm="wrong results",
        summary="Memory of gradients may be given to others while it is still being reduced: the loss "
        "becomes NaN or drifts",
        when=_OVERLAPS,
        at=_KEY,
        instead=_NO_OVERLAP,
        sometimes=True,
        source="#7965",
    ),
    Defect(
        id="overlap-producer-streams",
        releases=".. 0.19.3",
        harm="wrong results",
        summary="A gradient bucket is reduced before all of it is written: the loss becomes NaN",
        when=_IN_ONE_BUFFER & recipe_trains_with("torch_compile"),
        at=_KEY,
        instead=_NO_OVERLAP,
        sometimes=True,
        source="#8061, #8080",
    ),
    Defect(
        id="zero3-gradient-stream",
        releases=".. 0.18.8",
        harm="wrong results",
        summary="Gradients are reduced before they are computed: weights become NaN on some ranks",
        when=stage(3),
        beyond="torch 2.10 or newer",
        instead="use PyTorch before 2.10",
        sometimes=True,
        source="#7898",
    ),
)
