"""Virtual time: streams and events of the virtual device against a simulation of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import processes

ROOT = Path(__file__).resolve().parents[2]


def test_streams_and_events_take_the_time_of_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.rehearsal.clock_programs", "400", "3"]
    tried, waits, slowed = map(int, processes.checked(command, cwd=ROOT).splitlines()[-1].split())
    assert tried >= 300
    assert waits >= 30
    assert slowed >= 30
