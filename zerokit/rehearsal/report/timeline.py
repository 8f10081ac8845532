"""How a recording is cut for pictures and traces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from zerokit.rehearsal.recording import Array, Recording
from zerokit.reporting.phases import RUN_PHASES


def peak_event(running: Array) -> int:
    """The number of the event that first reaches the largest of `running` bytes; -1 without events."""
    return int(running.argmax()) if len(running) else -1


def phase_runs(recording: Recording) -> list[tuple[int, int, str]]:
    """Stretches of events in one phase: first event, the event after the last, name."""
    phases = recording.events["phase"]
    if not len(phases):
        return []
    edges = [0, *(np.flatnonzero(np.diff(phases)) + 1).tolist(), len(phases)]
    return [(begin, end, RUN_PHASES[phases[begin]]) for begin, end in pairwise(edges)]


def thinned(total: Array, most: int) -> Array:
    """Places in `total` to draw, at most about `most`: of each stretch the highest and the lowest.

    The overall peak is always among them.
    """
    if len(total) <= most:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), max(1, most // 2) + 1, dtype=np.int64)
    chosen = [
        begin + place
        for begin, end in pairwise(edges)
        if end > begin
        for place in (total[begin:end].argmax(), total[begin:end].argmin())
    ]
    return np.unique([*chosen, 0, len(total) - 1])
