"""The geometry of charts: positions are percentages, so that text keeps its size at any width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerokit.reporting.categories import CATEGORIES

_FEW_TICKS = 5.5
_NEAR = 2.5
"""A GPU's memory is drawn up to this multiple of the highest point."""
_SMALLEST_USD = 0.01


def share(part: float, whole: float) -> str:
    """``"12.5%"``."""
    return f"{100 * part / (whole or 1):.3f}".rstrip("0").rstrip(".") + "%"


def ticks(high: float, unit: float, low: float = 0.0) -> list[float]:
    """Round multiples of a unit from `low` up to `high`."""
    length = (high - low) / unit
    size = 10 ** math.floor(math.log10(length)) if length > 0 else 1.0
    size = next(one for one in (size / 5, size / 2, size, 2 * size) if length / one <= _FEW_TICKS)
    return [number * size * unit for number in range(math.ceil(low / unit / size), int(high / unit / size) + 1)]


@dataclass(frozen=True)
class Area:
    """Bytes over a step, stacked by category."""

    paths: dict[str, str]
    """Of SVG, in a square of 1000, by category."""
    whole: float
    """Bytes of the chart's height."""


def area(curve: Any, gpu_memory_bytes: int) -> Area | None:
    """The curve of a rehearsal; None if it has no points, or not one for each position."""
    held = {name: curve.bytes[name] for name in CATEGORIES if name in curve.bytes}
    if not curve.at or not curve.end or any(len(levels) != len(curve.at) for levels in held.values()):
        return None
    tops = [[0] * len(curve.at)]
    for levels in held.values():
        tops.append([below + level for below, level in zip(tops[-1], levels, strict=True)])
    whole = max(*tops[-1], gpu_memory_bytes if gpu_memory_bytes <= _NEAR * max(tops[-1]) else 0, 1) * 1.04
    right = [_number(min(end / curve.end, 1)) for end in [*curve.at[1:], curve.end]]
    left = [_number(0), *right[:-1]]
    paths: dict[str, str] = {}
    for name, bottom, top in zip(held, tops, tops[1:], strict=False):
        # There and back: each level lasts until the next point.
        there = [f"V{_number(1 - level / whole)}H{x}" for level, x in zip(top, right, strict=True)]
        back = [f"V{_number(1 - level / whole)}H{x}" for level, x in zip(bottom, left, strict=True)]
        paths[name] = f"M0,1000{''.join(there)}{''.join(back[::-1])}Z"
    return Area(paths, whole)


@dataclass(frozen=True)
class Lines:
    """Values by step."""

    points: dict[str, list[tuple[float, float]]]
    """Shares of width and height, from the upper left, by name."""
    low: float
    high: float
    end: float
    """The last step."""

    def path(self, name: str) -> str:
        """Of SVG, in a square of 1000."""
        return "M" + "L".join(f"{_number(x)},{_number(y)}" for x, y in self.points[name])


def lines(losses: Mapping[str, Sequence[Sequence[float]]]) -> Lines | None:
    """The lines of losses, as :func:`zerokit.reporting.losses.read_losses` returns them; None without any."""
    known = [point for points in losses.values() for point in points]
    if not known or any(len(point) != 2 for point in known):
        return None
    values = [value for _, value in known]
    room = 0.05 * (max(values) - min(values)) or 1.0
    low, high = min(values) - room, max(values) + room
    end = max(step for step, _ in known) or 1
    shares = {
        name: [(step / end, (high - value) / (high - low)) for step, value in points]
        for name, points in losses.items()
    }
    return Lines(shares, low, high, end)


def flow(texts: Iterable[str], width: float, character: float = 7.0) -> list[tuple[float, int]]:
    """Left end and row of each text of a legend."""
    places: list[tuple[float, int]] = []
    left, row = 0.0, 0
    for text in texts:
        needed = 40 + character * len(text)
        if left and left + needed > width:
            left, row = 0.0, row + 1
        places.append((left, row))
        left += needed
    return places


def _number(share_of_side: float) -> str:
    return f"{1000 * share_of_side:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class LogAxis:
    """A logarithmic axis around positive values; the page's script makes the same of other prices."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float]) -> LogAxis:
        """With some room on both sides."""
        known = [max(value, _SMALLEST_USD) for value in values]
        return cls(min(known) / 1.25, max(known) * 1.25)

    def at(self, value: float) -> str:
        """The distance from the low end."""
        return share(math.log(max(value, _SMALLEST_USD) / self.low), math.log(self.high / self.low))

    def below(self, value: float) -> str:
        """The distance from the high end."""
        return share(math.log(self.high / max(value, _SMALLEST_USD)), math.log(self.high / self.low))

    def has(self, value: float | None) -> bool:
        """Whether a value is on it."""
        return value is not None and self.low <= value <= self.high

    def ticks(self, beyond: float = 1.0) -> list[float]:
        """Round values, up to `beyond` times farther than the ends."""
        digits = (1, 1.5, 2, 3, 4, 5, 6, 8) if self.high < 5 * self.low else (1, 2, 5)
        low, high = self.low / beyond, self.high * beyond
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [value for power in powers for digit in digits if low <= (value := digit * 10.0**power) <= high]
