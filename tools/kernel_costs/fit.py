"""Fits the curves of :mod:`zerokit.hardware.costs` to ``tables.json``.

``python -m tools.kernel_costs.fit`` writes ``zerokit/hardware/costs/kernels.json``.
``python -m tests.validation.hardware.costs_against_tables`` tests them on shapes that were left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from zerokit.calibration.fits import compute_bound_rows, fit_matmul_curve, flatten_curve
from zerokit.hardware.costs.attention import Attention, AttentionCurve, attention_work
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.matmul import KNOTS, LAYOUTS, MatmulCurve
from zerokit.hardware.gpus import find_gpu

TABLES = Path(__file__).with_name("tables.json")
WRITTEN = Path(__file__).parents[2] / "zerokit" / "hardware" / "costs" / "kernels.json"

_LAYOUTS_OF = "A100-80GB-PCIe"
"""The card whose layouts differ as those of one that was measured in a single layout are taken to."""

Array = np.ndarray[Any, np.dtype[np.float64]]


@cache
def tables() -> dict[str, Any]:
    """The measurements; columns are named in the file."""
    data: dict[str, Any] = json.loads(TABLES.read_text(encoding="utf-8"))
    return data


def fit_matmul(rows: Sequence[Sequence[Any]]) -> MatmulCurve:
    """The curve of rows of the table of one card: card, layout, m, n, k, share of the peak.

    No shape is taken to reach more of the peak than ``best_share`` in ``figures.json``.
    """
    gpu, memory = find_gpu(rows[0][0]), figures()["memory"]
    assert gpu.bandwidth_gb_s is not None
    reached = memory["share"]["cards"].get(gpu.name, memory["share"]["others"])
    measured = compute_bound_rows(
        [row[1:] for row in rows],
        1e12 * gpu.tflops["fp16"],
        1e9 * gpu.bandwidth_gb_s * reached,
        memory["kernel_seconds"]["value"],
    )
    curve = fit_matmul_curve(measured, figures()["best_share"]["cards"][gpu.name]["tensor"])
    is_whole = max(k for _, _, _, k, _ in measured) >= KNOTS[-1]
    curve = curve if is_whole else flatten_curve(curve, measured)
    (known, *others) = {row[0] for row in measured}
    return curve if others else replace(curve, layouts=_borrowed(known, curve.layouts[known]))


def _borrowed(known: str, value: float) -> dict[str, float]:
    """Of all layouts, by one."""
    other = _known_layouts()
    return {name: round(value + other[name] - other[known], 4) for name in LAYOUTS}


@cache
def _known_layouts() -> Mapping[str, float]:
    return fit_matmul(matmul_rows(_LAYOUTS_OF)).layouts


def fit_attention(rows: Sequence[Sequence[Any]], peak_flops: float, multiprocessors: int) -> AttentionCurve:
    """Least squares of the relative error, by coefficients that are not negative.

    Args:
        rows: card, kernel, passes, causal, batch, heads, kv_heads, length, head_dim, TFLOPS, source.
        peak_flops: of the card, per second.
        multiprocessors: of the card.
    """
    features, names = [], AttentionCurve.terms()
    for _, _, passes, causal, batch, heads, kv_heads, length, head_dim, tflops, _ in rows:
        call = Attention(batch, heads, kv_heads, length, length, head_dim, causal)
        row = np.zeros(2 * len(names))
        flops = 0.0
        for at, backward in enumerate((False, True)):
            if passes in ("both", "backward" if backward else "forward"):
                work = attention_work(call, backward, multiprocessors)
                row[at * len(names) : (at + 1) * len(names)] = work
                flops += work[0] / (1 + causal / length) if causal else work[0]
        features.append(row / peak_flops / (flops / (tflops * 1e12)))
    whole = np.array(features)
    if all(row[2] == "both" for row in rows):  # nothing tells one pass from the other
        both = _above_peak(whole[:, : len(names)] + whole[:, len(names) :])
        found = np.concatenate([both, both])
    else:
        found = _above_peak(whole)
    # Where no causal pass was measured, its diagonal costs what it costs the other pass, per product.
    if not any(row[2] != "forward" and row[3] for row in rows):
        found[len(names) + names.index("diagonal")] = found[names.index("diagonal")]
    values = [round(float(value), 4) for value in found]
    return AttentionCurve(forward=tuple(values[: len(names)]), backward=tuple(values[len(names) :]))


def _above_peak(features: Array) -> Array:
    """The coefficients, none below 0 and those of products not below 1, that bring each row nearest to 1."""
    products = np.zeros(features.shape[1])
    products[:: len(AttentionCurve.terms())] = 1
    return products + _not_negative(features, 1 - features @ products)


def _not_negative(features: Array, target: Array) -> Array:
    """Least squares with no coefficient below 0, by coordinate descent."""
    used = features.any(axis=0)
    scale = np.linalg.norm(features[:, used], axis=0)
    scaled = features[:, used] / scale
    gram, aim = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(len(aim))
    for _ in range(3000):
        for at in range(len(aim)):
            found[at] = max(0.0, found[at] - (gram[at] @ found - aim[at]))
    whole = np.zeros(features.shape[1])
    whole[used] = found / scale
    return whole


def matmul_cards() -> list[str]:
    """Whose products were measured."""
    return sorted({row[0] for row in tables()["matmul"]})


def matmul_rows(card: str) -> list[list[Any]]:
    """The measured products of a card."""
    return [row for row in tables()["matmul"] if row[0] == card]


def attention_rows(card: str, kernel: str) -> list[list[Any]]:
    """The measured calls of a kernel on a card."""
    return [row for row in tables()["attention"] if row[:2] == [card, kernel]]


def fitted() -> dict[str, Any]:
    """What ``kernels.json`` holds."""
    data = tables()
    cards = data["cards"]
    kernels = sorted({(row[0], row[1]) for row in data["attention"] if row[1] != "eager"})
    return {
        "made_by": "python -m tools.kernel_costs.fit",
        "sources": data["sources"],
        "matmul": {card: vars(fit_matmul(matmul_rows(card))) for card in matmul_cards()},
        "attention": [
            {"card": card, "kernel": kernel, **cards[card]}
            | vars(
                fit_attention(
                    attention_rows(card, kernel), cards[card]["peak_tflops"] * 1e12, cards[card]["multiprocessors"]
                )
            )
            for card, kernel in kernels
        ],
    }


if __name__ == "__main__":
    WRITTEN.write_text(json.dumps(fitted(), indent=1) + "\n", encoding="utf-8")
