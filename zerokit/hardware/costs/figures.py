"""The numbers behind the costs, with sources: `figures.json` (collected) and `kernels.json` (fitted)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from zerokit.hardware.costs.attention import AttentionCurve
from zerokit.hardware.costs.matmul import MatmulCurve
from zerokit.hardware.gpus import Gpu

_FOLDER = Path(__file__).parent

Generation = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "other"]


@cache
def figures() -> dict[str, Any]:
    """All of `figures.json`."""
    return _read("figures.json")


@dataclass(frozen=True)
class MeasuredAttention:
    """A kernel's curve, and the card on which it was measured."""

    card: str
    kernel: str
    peak_flops: float
    multiprocessors: int
    curve: AttentionCurve


@cache
def matmul_curves() -> dict[str, MatmulCurve]:
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, MatmulCurve]).validate_python(_read("kernels.json")["matmul"])


@cache
def attention_curves() -> tuple[MeasuredAttention, ...]:
    return tuple(
        MeasuredAttention(
            one["card"],
            one["kernel"],
            one["peak_tflops"] * 1e12,
            one["multiprocessors"],
            AttentionCurve(tuple(one["forward"]), tuple(one["backward"])),
        )
        for one in _read("kernels.json")["attention"]
    )


def generation(gpu: Gpu) -> Generation:
    """The generation of a card, by its compute capability."""
    major, minor = gpu.capability or (0, 0)
    if major == 7:
        return "turing" if minor == 5 else "volta"
    if major == 8:
        return "ada" if minor == 9 else "ampere"
    names: dict[int, Generation] = {9: "hopper", 10: "blackwell", 12: "ada"}  # 12: tensor cores as Ada's
    return names.get(major, "other")


def _read(name: str) -> dict[str, Any]:
    import json

    data: dict[str, Any] = json.loads((_FOLDER / name).read_text(encoding="utf-8"))
    return data
