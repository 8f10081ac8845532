"""Seconds of matrix products: the peak, times the share of it that the shape reaches."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

KNOTS = (128, 256, 512, 1024, 2048, 4096, 8192, 32768)
"""Lengths of a side at which a curve has values; between them its logarithm is a straight line."""

SIDES = ("shorter", "longer", "depth")
LAYOUTS = ("TN", "NN", "NT")
"""BLAS's words: TN is a linear layer's forward, NN its gradient by the input, NT that by the weight."""

_TILE, _TILE_DEPTH = 64, 32
"""A tensor core's kernel works on tiles: a side below this costs as much as one of this length."""


@dataclass(frozen=True)
class MatmulCurve:
    """Logarithm of the share of a card's best rate, as a sum over the sides of a product.

    A side's curve rises by less than 1 per e-fold of the length, so that time grows with every side.
    """

    shorter: tuple[float, ...]
    """Of the result's shorter side."""
    longer: tuple[float, ...]
    """Of the longer one, times the number of products in a batch."""
    depth: tuple[float, ...]
    """Of the side that is summed over."""
    layouts: Mapping[str, float] = field(hash=False)

    def share(self, m: int, n: int, k: int, batch: int, layout: str | None) -> float:
        """Of the card's best rate, for products (m, k) by (k, n). None: the layout is not known."""
        m, n, k = padded(m, n, k)
        shorter, longer = min(m, n), max(m, n) * batch
        log = _at(self.shorter, shorter) + _at(self.longer, longer) + _at(self.depth, k)
        known = self.layouts.values()
        log += sum(known) / len(known) if layout is None else self.layouts[layout]
        return min(1.0, math.exp(log))

    def mixed_with(self, other: MatmulCurve) -> MatmulCurve:
        """The geometric mean of both: of a card between them."""

        def mean(one: tuple[float, ...], two: tuple[float, ...]) -> tuple[float, ...]:
            return tuple((a + b) / 2 for a, b in zip(one, two, strict=True))

        layouts = {name: (value + other.layouts[name]) / 2 for name, value in self.layouts.items()}
        return MatmulCurve(
            mean(self.shorter, other.shorter),
            mean(self.longer, other.longer),
            mean(self.depth, other.depth),
            layouts,
        )


def padded(m: int, n: int, k: int) -> tuple[int, int, int]:
    """The sides of a product, each as long as a tile at least."""
    return max(m, _TILE), max(n, _TILE), max(k, _TILE_DEPTH)


def _at(curve: tuple[float, ...], side: int) -> float:
    if side <= KNOTS[0]:
        return curve[0]
    if side >= KNOTS[-1]:
        return curve[-1]
    right = bisect_right(KNOTS, side)
    share = math.log(side / KNOTS[right - 1]) / math.log(KNOTS[right] / KNOTS[right - 1])
    return curve[right - 1] + share * (curve[right] - curve[right - 1])
