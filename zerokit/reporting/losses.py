"""The losses of a run, from the lines that it logged."""

from __future__ import annotations

import json
import math
from pathlib import Path

from zerokit.documents import read_bytes

_NAMES = {"loss": "training", "eval_loss": "held-out"}
_MOST_POINTS = 1000
_MAX_BYTES = 256 << 20


def read_losses(metrics: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of the training loss and the held-out loss, each at most 1,000 points.

    If a resumed run repeated steps, the last values are returned.

    Args:
        metrics: ``metrics.jsonl`` of the run. Lines that are half-written or have no step are left out.

    Raises:
        DocumentError: the file cannot be read.
    """
    points: dict[str, list[tuple[int, float]]] = {name: [] for name in _NAMES}
    for text in read_bytes(metrics, max_bytes=_MAX_BYTES).decode(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict) or not isinstance(step := line.get("step"), int) or step < 0:
            continue
        for name, known in points.items():
            if "max_steps" in line:  # a run begins here, or goes on
                known[:] = [point for point in known if point[0] <= step]
            if isinstance(value := line.get(name), int | float) and math.isfinite(value):
                known.append((step, value))
    return {_NAMES[name]: _thinned(known) for name, known in points.items() if known}


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The lowest and the highest value of each stretch."""
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    if size <= 2:
        return points
    stretches = [points[first : first + size] for first in range(0, len(points), size)]
    ends = [{pick(part, key=lambda point: point[1]) for pick in (min, max)} for part in stretches]
    return [point for pair in ends for point in sorted(pair)]
