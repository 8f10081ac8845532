"""The cards on which kernels and links were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from zerokit.hardware.costs.figures import attention_curves, figures, matmul_curves
from zerokit.hardware.gpus import Gpu, gpus

Class = Literal["matmul", "attention", "memory_bound", "collective", "copy", "host_optimizer"]
"""Kinds of costs."""

_PROCESSORS = {"H200": "H100", "GH200": "H100", "H800": "H100", "A800": "A100"}
"""The processor of a card with another name."""

FP32_ALONE = "the best shape in fp32"
"""What was measured of matmul on a card without 16-bit measurements."""


def measured_on(gpu: Gpu, data: Mapping[str, Any] | None = None) -> dict[Class, str]:
    """Kinds of costs that were measured on the card or its processor, with what was measured."""
    data = figures() if data is None else data
    found: dict[Class, str] = {}
    own = data.get("kernels", {})
    shares = data["best_share"]["cards"].get(gpu.name)
    if "matmul" in own or (shares and any(_has_processor_of(gpu.name, card) for card in matmul_curves())):
        found["matmul"] = "many shapes"
    elif shares:
        in_16_bits = "tensor" in shares and "tensor" not in shares.get("unmeasured", ())
        found["matmul"] = "the best shape" if in_16_bits else FP32_ALONE
    kernels = {one.kernel for one in attention_curves() if _has_processor_of(gpu.name, one.card)} - {"triton"}
    if "attention" in own:
        found["attention"] = "torch's fused one"
    elif kernels:
        found["attention"] = ", ".join(sorted(kernels))
    if gpu.name in data["memory"]["share"]["cards"]:
        found["memory_bound"] = "bandwidth by size"
    if gpu.name in data["fabric"]["cards"]:
        found["collective"] = "bus bandwidth"
    return found


def _has_processor_of(name: str, measured: str) -> bool:
    is_listed = any(gpu.name == name for gpu in gpus())  # a file's card may be called as it likes
    return is_listed and _processor(name) == _processor(measured)


def _processor(card: str) -> str:
    name = card.split("-")[0]
    return _PROCESSORS.get(name, name)
