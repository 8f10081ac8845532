"""How far off the worst of many rows are."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest of some numbers beyond which no more than 1 - `share` of them lie: one of them, always.

    Args:
        ordered: the numbers, smallest first; at least one.
        share: such as 0.9 for the 90th percentile.
    """
    return ordered[math.ceil(share * len(ordered)) - 1]
