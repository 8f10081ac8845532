"""Costs of functions, fitted to samples of their frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_ALIKE = 3
"""Repetitions of a step from which on their median has nothing of other programs."""


def undisturbed(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One step without what other programs added to its repetitions.

    A program that takes the processor adds its time to a few samples, at other places in each repetition: the median
    of each place has none of it, and keeps what takes long each time.

    Args:
        steps: arrays of one length in each step, by name; `units`, and others that are the same in all steps. Those
            steps count whose others are the most frequent.

    Raises:
        ValueError: fewer than :data:`_ALIKE` steps do the same.
    """
    alike: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        alike[b"".join(step[key].tobytes() for key in step if key != "units")].append(step)
    usual = max(alike.values(), key=len)
    if len(usual) < _ALIKE:
        raise ValueError(f"only {len(usual)} of {len(steps)} repetitions of a step do the same")
    return usual[0] | {"units": np.median([step["units"] for step in usual], axis=0)}


class Observed(NamedTuple):
    """Samples of one function that called the same numbers of frames, operators and nodes."""

    frames: int
    operators: int
    nodes: int
    count: int
    units: float
    """Its own time."""


def groups(samples: Any) -> list[Observed]:
    """Group one function's samples.

    Args:
        samples: arrays `frames`, `operators`, `nodes` and `units` of one length.
    """
    keys = np.stack([samples["frames"], samples["operators"], samples["nodes"]], axis=1)
    kinds, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.reshape(-1)
    found = []
    for place, kind in enumerate(kinds):
        units = samples["units"][places == place]
        found.append(Observed(*map(int, kind), len(units), float(units.mean())))
    return found


class Fitted(NamedTuple):
    """Units of a function."""

    call: float
    frame: float
    """Of each frame that it calls."""
    operator: float
    """Of each operator that it calls."""
    node: float = 0.0
    """Of each node of autograd that it runs."""


def fit(observed: Sequence[Observed]) -> Fitted:
    """Fit a function's own time."""
    rows = np.array([[1, one.frames, one.operators, one.nodes] for one in observed], float)
    units = np.array([one.units for one in observed])
    weights = np.sqrt(np.array([one.count for one in observed]) / np.maximum(units, 0.1))
    # A column that does not vary is part of the call.
    columns = [0] + [column for column in (1, 2, 3) if np.ptp(rows[:, column]) > 0]
    solved = np.zeros(4)
    while columns:
        solved[:] = 0
        solved[columns] = np.linalg.lstsq(rows[:, columns] * weights[:, None], units * weights, rcond=None)[0]
        if solved.min() >= 0:
            break
        columns.remove(int(np.argmin(solved)))
    return Fitted(*map(float, solved))


def with_nodes(engine: Fitted, node: Fitted, hot: float) -> Fitted:
    """The function that runs a backward pass, with what its nodes take.

    Args:
        node: of a node by itself; its frames are hooks and backwards in Python.
        hot: units of a node that are priced already, as measured in a loop.
    """
    return Fitted(engine.call, node.frame, max(engine.node + node.call + node.operator - hot, 0.0))
