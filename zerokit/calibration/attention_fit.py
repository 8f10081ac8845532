"""A curve of fused attention from measured calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from zerokit.hardware.prices.attention import AttentionCurve

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
