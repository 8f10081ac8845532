"""The files that a rehearsal draws: the trace, and pictures of memory and of a step's streams."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.rehearsal.report.trace import write_trace
from zerokit.reporting.page import write_picture
from zerokit.units import format_bytes, quantity


class Drawings(NamedTuple):
    """Where to write each; None leaves it out."""

    trace: str | Path | None = None
    plot: str | Path | None = None
    timeline: str | Path | None = None

    def write(self, recording: Recording, report: RehearsalReport) -> list[str]:
        """Write the files of one rank, and return warnings about what could not be drawn.

        Raises:
            ZerokitError: a file cannot be written.
        """
        if self.trace is not None:
            write_trace(recording, self.trace)
        warnings = []
        data = report.model_dump()
        where = f"{Path(report.run.script).name} on {quantity(report.world_size, 'GPU')}, rank {report.rank}: "
        if self.plot is not None and report.device.curve is not None:
            peak = f"peak {format_bytes(report.device.peak_bytes)} in {report.device.peak_phase}"
            write_picture(self.plot, "over_a_step", data, where + peak)
        elif self.plot is not None:
            warnings.append("--plot: no step was completed, so there is none to draw")
        if self.timeline is not None and report.time is not None:
            step = f"step {report.time.step}, {1000 * report.time.step_seconds:,.1f} ms"
            write_picture(self.timeline, "streams", data, where + step)
        elif self.timeline is not None:
            warnings.append("--timeline: no step was timed, so there is none to draw")
        return warnings
