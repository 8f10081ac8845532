"""The range of a step's seconds in which nine of ten real runs lie, by the class of the run.

``python -m tests.validation.rehearsal.ranges --write`` makes `ranges.json` from published runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_MUCH = 0.2
"""Share of a step from which the host, or offload to it, decides the step."""
_FEW_TOKENS = 1024
"""Of a micro-batch on one GPU: the host decides steps of fewer."""
_OWN = ", calibrated"


class StepRange(NamedTuple):
    """A range of seconds."""

    low_seconds: float
    high_seconds: float
    run_class: str
    """The class in words."""
    narrower_with: list[str]
    """What would make the range narrower."""


def class_of(
    shares: Mapping[str, float],
    tokens: float | None,
    *,
    deepspeed: bool,
    guessed: bool = False,
    calibrated: bool = False,
) -> str:
    """The class of a run, by its name in `ranges.json`: the engine, and what decides or may decide the step.

    Args:
        shares: of the step, by the names of a rehearsal's ``time.breakdown``.
        tokens: of a micro-batch on one GPU; None: not known.
        deepspeed: whether DeepSpeed's engine makes the step.
        guessed: whether there are several nodes, and the speed of their network is not known.
        calibrated: whether ``zerokit calibrate`` measured the costs of the machine itself.
    """
    offload = sum(shares.get(name, 0.0) for name in ("host_optimizer", "host_operators", "copies"))
    work = "network" if guessed else "kernels"
    if offload >= _MUCH:
        work = "offload"
    elif shares["launch"] >= _MUCH or (tokens is not None and tokens < _FEW_TOKENS):
        work = "host"
    return f"{'DeepSpeed' if deepspeed else 'other'}, {work}{calibrated * _OWN}"


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
    deepspeed: bool,
) -> StepRange:
    """The range of a step of `seconds`, which `costs` predict with the bounds `of_costs`.

    `parts` are seconds by the names of :func:`class_of`, which has `tokens` and `deepspeed`, too.
    """
    shares = {name: part / (seconds or 1.0) for name, part in parts.items()}
    calibrated = "matmul" in costs.figures.get("kernels", {})  # the card's own curve, of a file
    guessed = costs.cluster.num_nodes > 1 and costs.is_network_assumed
    name = class_of(shares, tokens, deepspeed=deepspeed, guessed=guessed, calibrated=calibrated)
    found, own = (_TABLE["classes"][f"{name.removesuffix(_OWN)}{end}"] for end in (calibrated * _OWN, _OWN))
    is_own_narrower = not calibrated and (own["high"] < found["high"] or bool(costs.assumptions))
    hints = {"--network": guessed, "larger micro-batches": ", host" in name, "zerokit calibrate": is_own_narrower}
    low, high = of_costs
    if 0 < low <= seconds <= high:
        low = seconds * math.exp(-half_width(math.log(seconds / low), found["low"], _TABLE["power"]))
        high = seconds * math.exp(half_width(math.log(high / seconds), found["high"], _TABLE["power"]))
    return StepRange(low, high, found["description"], [hint for hint, helps in hints.items() if helps])


def range_line(run_class: str, narrower_with: Sequence[str]) -> str:
    """What a range means, and what makes it narrower."""
    published = next((one["published"] for one in _TABLE["classes"].values() if one["description"] == run_class), None)
    inside = f"; {published[0]} of {published[1]} published runs of this kind did" if published else ""
    narrower = f". To narrow it: {', '.join(narrower_with)}" if narrower_with else ""
    return f"Nine of ten real runs should lie within the range ({run_class}{inside}){narrower}"
