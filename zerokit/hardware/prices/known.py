"""Of which cards the kernels and links were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from zerokit.hardware.gpus import Gpu
from zerokit.hardware.prices.figures import attention_curves, figures, matmul_curves

Class = Literal["matmul", "attention", "memory_bound", "collective", "copy", "host_optimizer"]
"""Kinds of prices."""


def measured_on(gpu: Gpu, data: Mapping[str, Any] | None = None) -> dict[Class, str]:
    """Kinds of prices that rest on measurements of the card, or of its processor, with what was measured."""
    data = figures() if data is None else data
    found: dict[Class, str] = {}
    if gpu.name in matmul_curves():
        found["matmul"] = "many shapes"
    elif gpu.name in data["best_share"]["cards"]:
        found["matmul"] = "the best shape"
    kernels = {one.kernel for one in attention_curves() if _has_processor_of(gpu.name, one.card)} - {"triton"}
    if kernels:
        found["attention"] = ", ".join(sorted(kernels))
    if gpu.name in data["memory"]["share"]["cards"]:
        found["memory_bound"] = "bandwidth by size"
    if gpu.name in data["fabric"]["cards"]:
        found["collective"] = "bus bandwidth"
    return found


def _has_processor_of(name: str, measured: str) -> bool:
    return name.split("-")[0] == measured.split("-")[0] or (
        measured == "H100-SXM" and name in ("H200", "GH200")
    )
