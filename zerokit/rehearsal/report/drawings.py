"""The files that a rehearsal draws: trace, plots of memory and streams, memory snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from zerokit.rehearsal.recording import Recording
from zerokit.rehearsal.report.plots import write_plot, write_streams_plot
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.rehearsal.report.snapshot import write_snapshot
from zerokit.rehearsal.report.trace import write_trace


class Drawings(NamedTuple):
    """Where to write each; None leaves it out."""

    trace: str | Path | None = None
    plot: str | Path | None = None
    timeline: str | Path | None = None
    memory_snapshot: str | Path | None = None

    def write(self, recording: Recording, report: RehearsalReport, gpu_memory_bytes: int) -> list[str]:
        """Write the files of one rank.

        Returns:
            warnings about what could not be drawn.

        Raises:
            ZerokitError: a file cannot be written.
        """
        if self.trace is not None:
            write_trace(recording, Path(self.trace))
        if self.plot is not None:
            write_plot(recording, report, Path(self.plot), gpu_memory_bytes)
        if self.memory_snapshot is not None:
            write_snapshot(recording, Path(self.memory_snapshot))
        if self.timeline is not None and report.time is not None:
            write_streams_plot(recording, report, Path(self.timeline))
        elif self.timeline is not None:
            return ["--timeline: no step was timed, so there is none to draw"]
        return []
