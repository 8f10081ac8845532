"""Curves of matrix products and of fused attention from measured calls."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from zerokit.hardware.prices.attention import AttentionCurve
from zerokit.hardware.prices.matmul import KNOTS, LAYOUTS, SIDES, MatmulCurve

_BESIDE_PRODUCTS = [AttentionCurve.terms().index(kind) for kind in ("scores", "rows", "diagonal")]
"""Not the last block: in calls of equally many heads it is the same share of the rows' work."""


def fitted_costs(works: Sequence[Sequence[float]], measured: Sequence[float]) -> tuple[float, ...]:
    """What each kind of work costs: least squares of the relative errors, none of them below nothing.

    Args:
        works: of each call, as :func:`zerokit.hardware.prices.attention.attention_work` has it.
        measured: floating-point operations that the card would do at its peak in the time of each call.

    Returns:
        in the order of :meth:`AttentionCurve.terms`, the first of them, which every call has, above nothing.
    """
    import numpy as np

    rows = np.array(works) / np.array(measured)[:, None]
    best, costs = float("inf"), np.zeros(len(AttentionCurve.terms()))
    # With so few kinds, each choice of those that cost something can be tried.
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(_BESIDE_PRODUCTS, count) for count in range(len(_BESIDE_PRODUCTS) + 1)
    ):
        columns = [0, *chosen]
        found = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
        error = float(np.square(rows[:, columns] @ found - 1).sum())
        if found[0] > 0 and found.min() >= 0 and error < best:
            best, costs = error, np.zeros_like(costs)
            costs[columns] = found
    return tuple(float(cost) for cost in costs)


_STIFFNESS = 1.0
"""Of the curves of matrix products, against bends and, a third of it, against slopes."""

_MORE_THAN_MOVING = 1.3
"""How much longer than its bytes a product takes whose rate is not theirs."""


def fitted_curve(rows: Sequence[Sequence[Any]], best: float) -> MatmulCurve:
    """Least squares of the logarithm of the share of `best`, additive in the logarithms of the sides.

    Args:
        rows: layout, m, n, k, share of the peak.
        best: largest share of the peak of any shape.
    """
    import numpy as np

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


def of_products_alone(
    rows: Sequence[Sequence[Any]], peak: float, bytes_per_second: float, start: float, element: int = 2
) -> list[Sequence[Any]]:
    """Rows that tell how fast a card multiplies, with their shares when a kernel's start is taken off.

    A price adds the start, and is at least what the bytes take: where these are most of the time, nothing
    is left to tell. If that is so of all rows, they are as good as any.

    Args:
        rows: as of :func:`fitted_curve`.
        peak: operations per second.
        bytes_per_second: what large kernels reach.
        start: seconds.
        element: bytes of one.
    """
    found: list[Sequence[Any]] = []
    for layout, m, n, k, share in rows:
        seconds = 2 * m * n * k / (peak * share)
        moving = element * (m * n + n * k + m * k) / bytes_per_second
        if seconds > 2 * start and seconds - start > _MORE_THAN_MOVING * moving:
            found.append((layout, m, n, k, share * seconds / (seconds - start)))
    return found or list(rows)


def levelled(curve: MatmulCurve, rows: Sequence[Sequence[Any]]) -> MatmulCurve:
    """The same, but flat beyond the longest sides that were measured, and with all sides equally high.

    A fit goes on rising where nothing holds it, and two sides may have any constants that add to nothing.
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
    import numpy as np

    row = []
    for side in (min(m, n), max(m, n), k):
        at = np.interp(math.log(side), [math.log(knot) for knot in KNOTS], range(len(KNOTS)))
        row += [max(0.0, 1 - abs(at - knot)) for knot in range(len(KNOTS))]
    return row + [float(layout == name) for name in LAYOUTS]
