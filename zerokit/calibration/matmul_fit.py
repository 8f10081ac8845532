"""A curve of matrix products from measured ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from zerokit.hardware.prices.matmul import KNOTS, LAYOUTS, SIDES, MatmulCurve

_STIFFNESS = 1.0
"""Of the curves of matrix products, against bends and, a third of it, against slopes."""


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


def _features(layout: str, m: int, n: int, k: int) -> list[float]:
    import numpy as np

    row = []
    for side in (min(m, n), max(m, n), k):
        at = np.interp(math.log(side), [math.log(knot) for knot in KNOTS], range(len(KNOTS)))
        row += [max(0.0, 1 - abs(at - knot)) for knot in range(len(KNOTS))]
    return row + [float(layout == name) for name in LAYOUTS]
