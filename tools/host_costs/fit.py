"""Costs of functions, fitted to samples of their frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_ALIKE = 3
"""Repetitions of a step from which on one has nothing of other programs."""
_USUAL = 0.3
"""Quantile of a sample's repetitions: other programs only make it longer."""
_ROUNDS = 8
DISTANCES = 12
"""Number of factors of the coldness: no other function, 1, 2 to 3, ..., and all above."""
SIZES = 8
"""Number of factors of the size of a pass."""
_WARM, _USUAL_SIZE = 4, 2
"""The factors that are 1."""


def undisturbed(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One step without what other programs added to its repetitions.

    A program that takes the processor adds its time to some samples, at other places in each repetition: a low
    quantile of each place has none of it, and keeps what takes long each time.

    Args:
        steps: arrays of one length in each step, by name; `ns`, and others that are the same in all steps. Those
            steps count whose others are the most frequent.

    Raises:
        ValueError: fewer than :data:`_ALIKE` steps do the same.
    """
    alike: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for step in steps:
        alike[b"".join(step[key].tobytes() for key in step if key != "ns")].append(step)
    usual = max(alike.values(), key=len)
    if len(usual) < _ALIKE:
        raise ValueError(f"only {len(usual)} of {len(steps)} repetitions of a step do the same")
    return usual[0] | {"ns": np.quantile([step["ns"] for step in usual], _USUAL, axis=0)}


class Observed(NamedTuple):
    """Samples of one function that called the same numbers of frames and operators, as cold as each other."""

    cold: int
    """The place of its factor in the coldness."""
    frames: int
    operators: int
    step: int
    """The number of the step that they are from."""
    number: int
    units: float
    """Its own time, the mean."""


def places_of(numbers: Any, count: int) -> Any:
    """The places of numbers among so many factors: of 0, 1, 2 to 3, 4 to 7, ..., as of native/host_work.cpp."""
    return np.minimum(np.ceil(np.log2(numbers + 1.0)).astype(int), count - 1)


def groups(samples: Any) -> list[Observed]:
    """Group one function's samples.

    Args:
        samples: arrays `distance`, `frames`, `operators`, `step` and `units` of one length.
    """
    cold = places_of(samples["distance"], DISTANCES)
    kinds, places = np.unique(
        np.stack([cold, *(samples[key] for key in ("frames", "operators", "step"))], axis=1),
        axis=0,
        return_inverse=True,
    )
    counts = np.bincount(places.reshape(-1))
    means = np.bincount(places.reshape(-1), samples["units"]) / counts
    return [
        Observed(*map(int, kind), int(count), float(mean))
        for kind, count, mean in zip(kinds.tolist(), counts, means, strict=True)
    ]


class Fitted(NamedTuple):
    """Units of a function."""

    call: float
    """To be multiplied by its coldness."""
    frame: float
    """Of each frame that it calls."""
    operator: float
    """Of each operator that it calls."""


class Caches(NamedTuple):
    """Factors of what is no longer in the processor's caches."""

    coldness: Any
    """Of a call, by the number of other functions since the last."""
    sizes: Any
    """Of all, by the size of a pass."""


def fit(observed: Sequence[Observed], caches: Caches, passes: Any) -> Fitted:
    """Fit a function's own time, so that that of all samples together is right; `passes`: as of :func:`fit_all`."""
    counts, units, rows = _columns(observed, caches, passes)
    weights = np.sqrt(counts / np.maximum(units, 0.1))
    # Counts that do not vary are part of the call.
    columns = [0] + [column for column in (1, 2) if len({one[column] for one in observed}) > 1]
    solved = np.zeros(3)
    while columns:
        solved[:] = 0
        solved[columns] = np.linalg.lstsq(rows[:, columns] * weights[:, None], units * weights, rcond=None)[0]
        if solved.min() >= 0:
            break
        columns.remove(int(np.argmin(solved)))
    explained = counts @ rows @ solved
    return Fitted(*map(float, solved * (counts @ units / explained if explained > 0 else 1)))


def fit_all(observed: Mapping[Any, Sequence[Observed]], passes: Any) -> tuple[Caches, dict[Any, Fitted]]:
    """Fit all functions, and the factors that they have in common.

    Args:
        passes: of each step the place in :attr:`Caches.sizes` of its passes.
    """
    caches = Caches(np.ones(DISTANCES), np.ones(SIZES))
    for _ in range(_ROUNDS):
        of_calls, of_steps = np.zeros((2, DISTANCES)), np.zeros((2, len(passes)))
        for found in observed.values():
            counts, units, rows = _columns(found, caches, passes)
            both = np.stack([units, rows @ fit(found, caches, passes)]) * counts
            for sums, places in ((of_calls, [one.cold for one in found]), (of_steps, [one.step for one in found])):
                np.add.at(sums, (slice(None), places), both)
        of_sizes = np.zeros((2, SIZES))
        np.add.at(of_sizes, (slice(None), passes), of_steps)
        caches = Caches(
            _rising(caches.coldness * of_calls[0] / np.maximum(of_calls[1], 1), of_calls[1], _WARM),
            _rising(caches.sizes * of_sizes[0] / np.maximum(of_sizes[1], 1), of_sizes[1], _USUAL_SIZE),
        )
    return caches, {name: fit(found, caches, passes) for name, found in observed.items()}


def explained_units(observed: Sequence[Observed], cost: Fitted, caches: Caches, passes: Any) -> Any:
    """Units of all samples of each group by a cost."""
    counts, _, rows = _columns(observed, caches, passes)
    return counts * (rows @ cost)


def _columns(observed: Sequence[Observed], caches: Caches, passes: Any) -> tuple[Any, Any, Any]:
    """Counts, mean units, and what multiplies the parts of a function's cost."""
    cold, frames, operators, steps, counts, units = (np.array(column) for column in zip(*observed, strict=True))
    rows = np.stack([caches.coldness[cold], frames, operators], axis=1) * caches.sizes[passes[steps]][:, None]
    return counts, units, rows


def _rising(values: Any, weights: Any, one: int) -> Any:
    """The nearest values that never fall, by isotonic regression; the one at the place `one` is 1.

    Where nothing was observed, the value is that before, or else the first one.
    """
    blocks: list[tuple[float, float, int]] = []
    known = np.flatnonzero(weights)
    values = values[known[np.maximum(np.searchsorted(known, np.arange(len(values)), side="right") - 1, 0)]]
    for value, weight in zip(values, np.maximum(weights, 1e-9), strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            before = blocks.pop()
            both = before[1] + block[1]
            mean = (before[0] * before[1] + block[0] * block[1]) / both
            block = (mean, both, before[2] + block[2])
        blocks.append(block)
    rising = np.repeat([value for value, _, _ in blocks], [number for _, _, number in blocks])
    return rising / rising[one]
