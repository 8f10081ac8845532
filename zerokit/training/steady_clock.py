"""transformers' Trainer measures durations by a clock that NTP and people set; here by one that only runs."""

from __future__ import annotations

import time
from types import SimpleNamespace

from zerokit.patches import Patch, put

_PURPOSE = "measure durations though the system's clock is set"
_CLOCKS = [Patch(f"transformers.{module}", "time", _PURPOSE) for module in ("trainer", "trainer_utils")]


def use_steady_clock() -> None:
    """Have the Trainer's metrics of runtime and speed go by ``time.monotonic``."""
    for patch in _CLOCKS:
        put(patch, SimpleNamespace(time=lambda: time.monotonic()))  # a rehearsal replaces it later
