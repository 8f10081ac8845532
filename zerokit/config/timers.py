"""The section `timers`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zerokit.config.base import Reader, Section, Sub


class ThroughputTimer(Section):
    """The timer of samples per second."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = True
    """Measure. Default true."""

    synchronized: bool = True
    """Synchronise the device at each step: more exact, slower. Default true."""


class Timers(Section):
    """Timers."""

    throughput: Sub[ThroughputTimer] = Field(default_factory=ThroughputTimer.defaults)
    """The timer of samples per second."""
