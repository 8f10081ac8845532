"""The range of a step's seconds in which nine of ten real runs lie, by the class of the run.

``python -m tests.validation.rehearsal.ranges --write`` makes `ranges.json` from published runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.tables import table_of

_MUCH = 0.2
"""Share of a step from which the host, or offload to it, decides the step."""
_FEW_TOKENS = 1024
"""Of a micro-batch on one GPU: the host decides steps of fewer."""


class StepRange(NamedTuple):
    """A range of seconds."""

    low_seconds: float
    high_seconds: float
    run_class: str
    """The class in words."""
    narrower_with: list[str]
    """What would make the range narrower."""


def class_of(
    shares: Mapping[str, float], tokens: float | None, *, is_deepspeed: bool, is_calibrated: bool = False
) -> str:
    """The class of a run, by its name in `ranges.json`: the engine, and what decides the step.

    Args:
        shares: of the step, by the names of a rehearsal's ``time.breakdown``.
        tokens: of a micro-batch on one GPU; None: not known.
        is_deepspeed: whether DeepSpeed's engine makes the step.
        is_calibrated: whether ``zerokit calibrate`` measured the costs of the machine itself.
    """
    offload = sum(shares.get(name, 0.0) for name in ("host_optimizer", "host_operators", "copies"))
    is_of_host = shares["launch"] >= _MUCH or (tokens is not None and tokens < _FEW_TOKENS)
    work = "offload" if offload >= _MUCH else "host" if is_of_host else "kernels"
    return f"{'DeepSpeed' if is_deepspeed else 'other'}, {work}{', calibrated' if is_calibrated else ''}"


def half_width(of_costs: float, width: float, power: float) -> float:
    """The logarithm of high / middle, or of middle / low.

    Never less than `of_costs`, which the uncertainty of costs makes of it; otherwise `width`, of the class, times
    its power. Power 1 scales the range of the costs, 0 replaces it, 0.5 takes the geometric mean of both.
    """
    return max(of_costs, width * math.pow(of_costs, power))


def step_range(
    of_costs: tuple[float, float],
    seconds: float,
    parts: Mapping[str, float],
    costs: CardCosts,
    *,
    tokens: float | None,
    is_deepspeed: bool,
) -> StepRange:
    """The range of a step of `seconds`.

    Args:
        of_costs: the fewest and the most seconds within the uncertainty of all costs.
        parts: seconds of the step, by the names of :func:`class_of`, which has `tokens` and `is_deepspeed`, too.
        costs: by which it was predicted.
    """
    shares = {name: part / (seconds or 1.0) for name, part in parts.items()}
    is_calibrated = "matmul" in costs.figures.get("kernels", {})  # the card's own curve, of a file
    name = class_of(shares, tokens, is_deepspeed=is_deepspeed, is_calibrated=is_calibrated)
    found, power = _table()["classes"][name], _table()["power"]
    narrower = [] if is_calibrated else ["zerokit calibrate"]
    if ", host" in name:
        narrower.insert(0, "larger micro-batches")
    if costs.cluster.num_nodes > 1 and costs.is_network_assumed and shares["communication"] >= 0.05:
        narrower.insert(0, "--network")
    low, high = of_costs
    if 0 < low <= seconds <= high:
        low = seconds * math.exp(-half_width(math.log(seconds / low), found["low"], power))
        high = seconds * math.exp(half_width(math.log(high / seconds), found["high"], power))
    return StepRange(low, high, found["words"], narrower)


def range_line(run_class: str, narrower_with: Sequence[str]) -> str:
    """What a range means, and what makes it narrower."""
    narrower = f". Narrower with {', '.join(narrower_with)}" if narrower_with else ""
    return f"Nine of ten real runs lie within their range ({run_class}){narrower}"


@cache
def _table() -> Any:
    return table_of(__file__)
