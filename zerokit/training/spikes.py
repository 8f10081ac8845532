"""A loss that leaps, and which examples were in the batch."""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

_STEPS = 50
"""Before a step, whose losses tell what is usual."""
_LEAST_STEPS = 20
_DEVIATIONS = 8
_SHARE = 0.5
"""Of their mean: where losses hardly differ, as at the end, a small one is no spike."""
_IN_A_ROW = 5
"""So many losses in a row are no spikes: they stay that high, and are what is usual from then on."""
_MOST_NAMED = 8
_LONGEST_SEARCH = 30.0
"""Seconds, in which all ranks wait."""

Places = Callable[[Sequence[int]], list[str]]
"""File and line of each of some sequences, by their number in the data set; nothing where they are joined, or
not found in time."""


class UsualLoss:
    """The losses of the last steps."""

    def __init__(self, *, may_stay: bool = True) -> None:
        """With `may_stay`, losses that stay high become usual."""
        self._may_stay = may_stay
        self._losses: deque[float] = deque(maxlen=_STEPS)
        self._spikes: list[float] = []
        """Those in a row that came last."""

    def exceeded_by(self, loss: float) -> float | None:
        """Their mean, if `loss` is a spike above it; takes the loss of one more step in, if it is none.

        A spike exceeds the mean by 8 standard deviations, and by half of it.
        """
        if len(self._losses) >= _LEAST_STEPS:
            mean = fmean(self._losses)
            deviation = math.sqrt(fmean((one - mean) ** 2 for one in self._losses))  # pstdev takes fractions
            if loss - mean > max(_DEVIATIONS * deviation, _SHARE * abs(mean)):
                self._spikes.append(loss)
                if len(self._spikes) < _IN_A_ROW or not self._may_stay:
                    return mean
                self._losses = deque(self._spikes[:-1], maxlen=_STEPS)
        self._spikes.clear()
        self._losses.append(loss)
        return None


def worst(losses: Iterable[Iterable[float]]) -> tuple[int, int]:
    """The rank and the micro batch with the first loss that is no number, else with the largest.

    Args:
        losses: of the micro batches of a step, of each rank.
    """
    found = [(rank, micro, loss) for rank, own in enumerate(losses) for micro, loss in enumerate(own)]
    broken = [one for one in found if not math.isfinite(one[2])]
    rank, micro, _ = min(broken, key=lambda one: one[1]) if broken else max(found, key=lambda one: one[2])
    return rank, micro


def looked_up(numbers: Iterator[int], place: Callable[[int], str]) -> Places:
    """Places that are found by going through the data set once in a run, as far as it was asked for.

    Args:
        numbers: of the example that each sequence is of, in their order; made as they are taken.
        place: file and line of an example.
    """
    taken = array("q")

    def places(rows: Sequence[int]) -> list[str]:
        until = time.monotonic() + _LONGEST_SEARCH
        last = max(rows, default=-1)
        while len(taken) <= last and time.monotonic() < until:
            number = next(numbers, None)
            if number is None:
                break
            taken.append(number)
        return [place(taken[row]) for row in rows] if len(taken) > last else []

    return places


def numbered(rows: Sequence[int]) -> list[str]:
    """Of streamed data, whose examples are numbered: to find their lines, all would be read once more."""
    return [f"example {row + 1:,}" for row in rows]


def named(rank: int, rows: Sequence[int], places: Places) -> str:
    """``rank 1 with data.jsonl:17, data.jsonl:3``."""
    found = places(rows[:_MOST_NAMED]) or [f"sequence {row}" for row in rows[:_MOST_NAMED]]
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return f"rank {rank} with {', '.join(found)}{more}"
