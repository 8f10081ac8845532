"""The range of a step in which nine of ten real runs lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs import ranges
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.ranges import StepRange, class_of, half_width, range_line, step_range
from zerokit.hardware.gpus import find_gpu
from zerokit.tables import table_of

TABLE = table_of(ranges.__file__)
COSTS = CardCosts(Cluster(8, gpu=find_gpu("H100")))
OWN = replace(COSTS, figures=COSTS.figures | {"kernels": {"matmul": {}}})
"""Of a machine that was calibrated."""
KERNELS = {"compute": 0.9, "communication": 0.1, "launch": 0.0}
SHARES = [
    KERNELS,
    {"compute": 0.7, "communication": 0.1, "launch": 0.2},
    {"compute": 0.5, "communication": 0.0, "host_optimizer": 0.1, "copies": 0.1, "launch": 0.3},
]


def classes() -> Iterator[str]:
    choices = [(False, True)] * 3
    for shares, tokens, engine, network, own in itertools.product(SHARES, (None, 1023, 1024), *choices):
        yield class_of(shares, tokens, deepspeed=engine, guessed=network, calibrated=own)


def found(costs: CardCosts = COSTS, low: float = 0.8, high: float = 1.25, **changes: Any) -> StepRange:
    options: dict[str, Any] = {"parts": KERNELS, "tokens": 4096, "deepspeed": True} | changes
    return step_range((low, high), 1.0, options.pop("parts"), costs, **options)


def test_the_table_has_the_classes_of_all_runs() -> None:
    assert set(classes()) == set(TABLE["classes"])
    words = [one["description"] for one in TABLE["classes"].values()]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("shares", "tokens", "work"),
    [(SHARES[0], 1024, "kernels"), (SHARES[0], 1023, "host"), (SHARES[1], None, "host"), (SHARES[2], 64, "offload")],
)
def test_what_decides_a_step_is_its_class(shares: dict[str, float], tokens: int | None, work: str) -> None:
    assert class_of(shares, tokens, deepspeed=True) == f"DeepSpeed, {work}"
    assert class_of(shares, tokens, deepspeed=False, calibrated=True) == f"other, {work}, calibrated"
    guessed = class_of(shares, tokens, deepspeed=True, guessed=True)
    assert guessed == f"DeepSpeed, {'network' if work == 'kernels' else work}"


@given(
    low=st.floats(0.05, 1),
    high=st.floats(1, 20),
    more=st.floats(1, 3),
    parts=st.sampled_from(SHARES),
    tokens=st.sampled_from([None, 128, 8192]),
    deepspeed=st.booleans(),
)
def test_a_range_holds_the_prediction_and_that_of_its_costs(
    low: float, high: float, more: float, parts: dict[str, float], tokens: int | None, deepspeed: bool
) -> None:
    """It grows with theirs, and calibrating the machine makes it no wider."""
    options: dict[str, Any] = {"parts": parts, "tokens": tokens, "deepspeed": deepspeed}
    one, wider, own = (
        found(costs, start, end, **options)
        for costs, start, end in ((COSTS, low, high), (COSTS, low / more, high * more), (OWN, low, high))
    )
    for bounds in (one, own):
        assert bounds.low_seconds <= low * (1 + 1e-9)
        assert bounds.high_seconds >= high * (1 - 1e-9)
    assert wider.low_seconds <= one.low_seconds <= own.low_seconds * (1 + 1e-9)
    assert own.high_seconds <= one.high_seconds * (1 + 1e-9) <= wider.high_seconds * (1 + 2e-9)
    assert found(COSTS, low, high, **options) == one


def test_deepspeeds_steps_are_predicted_less_well() -> None:
    its, others = found(), found(deepspeed=False)
    assert its.high_seconds > others.high_seconds >= 1.25
    assert its.run_class == "DeepSpeed, limited by GPU kernels"


def test_costs_that_contradict_themselves_keep_their_range() -> None:
    """A step without any work has no costs."""
    assert found(low=0.0, high=0.0)[:2] == (0.0, 0.0)


@pytest.mark.parametrize(("power", "half"), [(0, 0.3), (0.5, 0.3 * 0.2**0.5), (1, 0.2)])
def test_a_width_replaces_that_of_the_costs_or_scales_it(power: float, half: float) -> None:
    assert half_width(0.2, 0.3, power) == pytest.approx(max(half, 0.2))
    assert half_width(0.0, 0.3, 1) == 0
    assert math.isclose(half_width(0.2, 3, 1), 0.6)


def test_what_makes_a_range_narrower_is_named_and_does() -> None:
    assert found().narrower_with == ["zerokit calibrate"]
    assert found(OWN).narrower_with == []
    assert found(OWN).high_seconds < found().high_seconds
    assert found(tokens=512).narrower_with[0] == "larger micro-batches"
    several = CardCosts(Cluster(16, 8, find_gpu("H100")))
    known = several.with_network(400)
    assert found(several).narrower_with[0] == "--network"
    assert "--network" not in found(known).narrower_with
    assert found(several).run_class == "DeepSpeed, limited by GPU kernels or by a network whose speed is assumed"
    assert found(several).high_seconds > found(known).high_seconds
    assert several.spread("collective").high > known.spread("collective").high == COSTS.spread("collective").high
    unmeasured = CardCosts(Cluster(8, gpu=find_gpu("RTX 4090")))
    assert found(unmeasured, deepspeed=False).narrower_with == ["zerokit calibrate"]


def test_the_line_says_what_the_range_means() -> None:
    kernels = "DeepSpeed, limited by GPU kernels"
    meaning = f"Nine of ten real runs should lie within the range ({kernels}; "
    assert range_line(kernels, []).startswith(meaning)
    assert range_line(kernels, []).endswith(" published runs of this kind did)")
    assert range_line(kernels, ["--network", "x"]).endswith("). To narrow it: --network, x")
    assert range_line("unknown", []) == "Nine of ten real runs should lie within the range (unknown)"
