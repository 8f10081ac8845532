"""Fits the curves of matmul and of fused attention to measured calls."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from zerokit.hardware.costs.attention import AttentionCurve
from zerokit.hardware.costs.matmul import KNOTS, LAYOUTS, SIDES, MatmulCurve

_OTHER_TERMS = [AttentionCurve.terms().index(kind) for kind in ("scores", "rows", "diagonal")]
"""Terms besides matmuls, without the last block: with equally many heads it is a fixed share of the rows."""


def fit_attention_costs(works: Sequence[Sequence[float]], measured: Sequence[float]) -> tuple[float, ...]:
    """The cost of each kind of work by least squares of relative errors; none is negative.

    Args:
        works: of each call, see :func:`zerokit.hardware.costs.attention.attention_work`.
        measured: floating-point operations that the card would do at its peak in the time of each call.

    Returns:
        costs in the order of :meth:`AttentionCurve.terms`; the first one is positive.
    """
    rows = np.array(works) / np.array(measured)[:, None]
    best, costs = float("inf"), np.zeros(len(AttentionCurve.terms()))
    # There are so few kinds that each subset of them can be tried.
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(_OTHER_TERMS, count) for count in range(len(_OTHER_TERMS) + 1)
    ):
        columns = [0, *chosen]
        found = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
        error = float(np.square(rows[:, columns] @ found - 1).sum())
        if found[0] > 0 and found.min() >= 0 and error < best:
            best, costs = error, np.zeros_like(costs)
            costs[columns] = found
    return tuple(float(cost) for cost in costs)


_STIFFNESS = 1.0
"""Weight of a matmul curve's bends; slopes have a third of it."""

_COMPUTE_BOUND = 1.3
"""Minimum of a compute-bound matmul's time over the time of its bytes."""


def fit_matmul_curve(rows: Sequence[Sequence[Any]], best: float) -> MatmulCurve:
    """Least squares of the logarithm of the share of `best`, additive in the logarithms of the sides.

    Args:
        rows: layout, m, n, k, share of the peak.
        best: largest share of the peak of any shape.
    """
    features = np.array([_features(layout, m, n, k) for layout, m, n, k, _ in rows])
    target = np.array([math.log(row[-1] / best) for row in rows])
    stiff = [1e-3 * np.eye(features.shape[1])]
    for side in range(len(SIDES)):
        start = side * len(KNOTS)
        for knot in range(start, start + len(KNOTS) - 1):
            slope = np.zeros(features.shape[1])
            slope[knot : knot + 2] = -1, 1
            stiff.append(0.3 * _STIFFNESS * slope[None])
            if knot < start + len(KNOTS) - 2:
                bend = np.zeros(features.shape[1])
                bend[knot : knot + 3] = 1, -2, 1
                stiff.append(_STIFFNESS * bend[None])
    ridge = np.vstack(stiff)
    found = np.linalg.solve(features.T @ features + ridge.T @ ridge, features.T @ target)
    values = [round(float(value), 4) for value in found]
    sides = {name: tuple(values[at * len(KNOTS) : (at + 1) * len(KNOTS)]) for at, name in enumerate(SIDES)}
    return MatmulCurve(layouts=dict(zip(LAYOUTS, values[-len(LAYOUTS) :], strict=True)), **sides)


def compute_bound_rows(
    rows: Sequence[Sequence[Any]], peak: float, bytes_per_second: float, start: float, element: int = 2
) -> list[Sequence[Any]]:
    """Rows of compute-bound matmuls, with shares without a kernel's start; all rows if none is compute-bound.

    A cost adds the start, and is at least the time of the bytes. If these are most of the time, a row does
    not show the rate of multiplication.

    Args:
        peak: operations per second.
        bytes_per_second: of large kernels.
        start: seconds.
    """
    found: list[Sequence[Any]] = []
    for layout, m, n, k, share in rows:
        seconds = 2 * m * n * k / (peak * share)
        moving = element * (m * n + n * k + m * k) / bytes_per_second
        if seconds > 2 * start and seconds - start > _COMPUTE_BOUND * moving:
            found.append((layout, m, n, k, share * seconds / (seconds - start)))
    return found or list(rows)


def flatten_curve(curve: MatmulCurve, rows: Sequence[Sequence[Any]]) -> MatmulCurve:
    """The curve, made flat beyond the longest measured sides, and with the same maximum for all sides.

    A fit rises further beyond the data, and constants of two sides that cancel out are arbitrary.
    """
    longest = {
        "shorter": max(min(m, n) for _, m, n, *_ in rows),
        "longer": max(max(m, n) for _, m, n, *_ in rows),
        "depth": max(k for _, _, _, k, _ in rows),
    }
    flat: dict[str, list[float]] = {}
    for name in SIDES:
        last = min(bisect_left(KNOTS, longest[name]), len(KNOTS) - 1)
        values = getattr(curve, name)
        flat[name] = [*values[:last], *[values[last]] * (len(KNOTS) - last)]
    height = sum(map(max, flat.values())) / len(SIDES)
    return MatmulCurve(
        **{
            name: tuple(min(1.0, round(value - max(values) + height, 4)) for value in values)
            for name, values in flat.items()
        },
        layouts={name: min(1.0, value) for name, value in curve.layouts.items()},
    )


def _features(layout: str, m: int, n: int, k: int) -> list[float]:
    row = []
    for side in (min(m, n), max(m, n), k):
        at = np.interp(math.log(side), [math.log(knot) for knot in KNOTS], range(len(KNOTS)))
        row += [max(0.0, 1 - abs(at - knot)) for knot in range(len(KNOTS))]
    return row + [float(layout == name) for name in LAYOUTS]
