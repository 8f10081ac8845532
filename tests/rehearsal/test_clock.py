"""Virtual time: streams and events against another simulation, and a step of ZeRO-3 worked out on paper."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import processes
from zerokit.rehearsal.native.clock import HOST, WorkKind
from zerokit.rehearsal.recording import SPAN
from zerokit.rehearsal.timing.breakdown import breakdown

ROOT = Path(__file__).resolve().parents[2]


def test_streams_and_events_take_the_time_of_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.rehearsal.clock_programs", "400", "3"]
    tried, waits, slowed = map(int, processes.checked(command, cwd=ROOT).splitlines()[-1].split())
    assert tried >= 300
    assert waits >= 30
    assert slowed >= 30


@functools.cache
def timelines() -> dict[str, Any]:
    """Of tests/rehearsal/clock_timeline.py."""
    command = [sys.executable, "-m", "tests.rehearsal.clock_timeline"]
    found: dict[str, Any] = json.loads(processes.checked(command, cwd=ROOT).splitlines()[-1])
    return found


PRODUCTS = 10 * (4 + 7)
"""Milliseconds of matrix products: backward has two for each layer, but one for the first."""


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        # Gathers and reductions run on the default stream: every one of four and four in turn is waited for.
        ("False 0", 4 * (4 + 10), 4 * 4 + 70 + 4 * 4),
        # The model itself has all four weights gathered at once before its first layer. They stay, but
        # for the first one's, which is gathered again beside the second layer's product.
        ("False 4", 4 * 4 + 4 * 10, 70 + 4 * 4),
        # The host waits after each layer of the forward pass, but not in the backward pass: there only
        # the first gather and the last reduction have nothing to hide behind.
        ("True 0", 4 * (4 + 10), 4 + 70 + 4),
        ("True 4", 4 * 4 + 4 * 10, 70 + 4),
    ],
)
def test_zero_3_hides_the_gathers_and_reductions_that_its_events_allow(
    case: str, forward: int, backward: int
) -> None:
    step = timelines()[case]
    assert round(step["forward"], 2) == forward
    assert round(step["all"], 2) == forward + backward
    parts = {name: round(1000 * seconds, 2) for name, seconds in step["breakdown"].items()}
    assert (parts["compute"], parts["communication"]) == (PRODUCTS, forward + backward - PRODUCTS)
    assert sum(step["breakdown"].values()) * 1000 == pytest.approx(step["all"])


def test_the_same_step_takes_the_same_nanoseconds() -> None:
    assert timelines()["again"] == timelines()["True 4"]
    assert len(timelines()["again"]["work"]) > 10


def test_the_clocks_of_a_script_go_by_virtual_time() -> None:
    seen = timelines()["clocks"]
    assert seen["event"] == 3.0
    assert seen["before the host waits"] < 0.1
    for clock in ("perf_counter", "monotonic_ns", "time"):
        assert 3.0 <= seen[clock] < 3.1
    assert 0.001 <= seen["sleep"] < 0.0011
    assert seen["behind in a thread"] > 3.0  # which sees the real time


def test_each_moment_of_a_step_counts_once() -> None:
    work = [
        (0, 10, 0, WorkKind.KERNEL),
        (5, 20, 1001, WorkKind.COLLECTIVE),
        (15, 30, 3, WorkKind.COPY),
        (18, 40, HOST, WorkKind.OPTIMIZER),
        (0, 60, HOST, WorkKind.WAITING),
        (50, 90, 0, WorkKind.KERNEL),
    ]
    spans = np.array([(begin, end, 0, 0, stream, kind, 0) for begin, end, stream, kind in work], SPAN)
    parts = breakdown(spans, 2, 60)
    nanoseconds = {name: round(seconds * 1e9) for name, seconds in parts.model_dump().items()}
    assert nanoseconds == {
        "compute": 8 + 10,
        "communication": 10,
        "copies": 10,
        "host_optimizer": 10,
        "launch": 10,
    }
