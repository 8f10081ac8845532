"""Seconds of matmul: the card's peak times the share that the shape reaches."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

KNOTS = (128, 256, 512, 1024, 2048, 4096, 8192, 32768)
"""Side lengths at which a curve has values; in between its logarithm is linear."""

SIDES = ("shorter", "longer", "depth")
LAYOUTS = ("TN", "NN", "NT")
"""BLAS's terms: TN is a linear layer's forward, NN its input gradient, NT its weight gradient."""

_TILE, _TILE_DEPTH = 64, 32
"""Tile size of tensor-core kernels: a shorter side costs as much."""


@dataclass(frozen=True)
class MatmulCurve:
    """Logarithm of the share of a card's best rate, as a sum over the sides.

    A side's curve rises by less than 1 per e-fold of length, so that time grows with every side.
    """

    shorter: tuple[float, ...]
    """Of the result's shorter side."""
    longer: tuple[float, ...]
    """Of the longer side, times the number of matmuls in a batch."""
    depth: tuple[float, ...]
    """Of the summed dimension."""
    layouts: Mapping[str, float] = field(hash=False)

    def share(self, m: int, n: int, k: int, batch: int, layout: str | None) -> float:
        """Share of the card's best rate for (m, k) by (k, n). None: unknown layout."""
        m, n, k = padded(m, n, k)
        shorter, longer = min(m, n), max(m, n) * batch
        log = _at(self.shorter, shorter) + _at(self.longer, longer) + _at(self.depth, k)
        known = self.layouts.values()
        log += sum(known) / len(known) if layout is None else self.layouts[layout]
        return min(1.0, math.exp(log))

    def mixed_with(self, other: MatmulCurve) -> MatmulCurve:
        """The geometric mean of two curves, for a card between them."""

        def mean(one: tuple[float, ...], two: tuple[float, ...]) -> tuple[float, ...]:
            return tuple((a + b) / 2 for a, b in zip(one, two, strict=True))

        layouts = {name: (value + other.layouts[name]) / 2 for name, value in self.layouts.items()}
        return MatmulCurve(
            mean(self.shorter, other.shorter), mean(self.longer, other.longer), mean(self.depth, other.depth), layouts
        )


def padded(m: int, n: int, k: int) -> tuple[int, int, int]:
    """The sides of a matmul, at least one tile each."""
    return max(m, _TILE), max(n, _TILE), max(k, _TILE_DEPTH)


def _at(curve: tuple[float, ...], side: int) -> float:
    if side <= KNOTS[0]:
        return curve[0]
    if side >= KNOTS[-1]:
        return curve[-1]
    right = bisect_right(KNOTS, side)
    share = math.log(side / KNOTS[right - 1]) / math.log(KNOTS[right] / KNOTS[right - 1])
    return curve[right - 1] + share * (curve[right] - curve[right - 1])
