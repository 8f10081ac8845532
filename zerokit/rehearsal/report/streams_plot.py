"""A picture of a step's streams: what each does when, a row each, over virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zerokit.rehearsal.native.clock import HOST, WorkKind
from zerokit.rehearsal.recording import Array, Recording
from zerokit.rehearsal.report.report import RehearsalReport, TimeReport
from zerokit.rehearsal.report.tables import breakdown_rows
from zerokit.rehearsal.report.trace import stream_words
from zerokit.reporting import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FINEST = 3000
"""Parts of the picture's width: work of one kind that is closer is drawn as one."""
_LOOKS: dict[WorkKind, tuple[str, dict[str, Any]]] = {
    WorkKind.KERNEL: ("kernels", {"facecolor": "#0072b2"}),
    WorkKind.COLLECTIVE: ("collectives", {"facecolor": "#e69f00"}),
    WorkKind.MEETING: ("waiting for other ranks", {"facecolor": "#fbe3b0", "hatch": "////"}),
    WorkKind.COPY: ("copies", {"facecolor": "#009e73"}),
    WorkKind.OPTIMIZER: ("optimizer on the host", {"facecolor": "#cc79a7"}),
    WorkKind.HOST_OPERATOR: ("operators on the host", {"facecolor": "#f0e442"}),
    WorkKind.DATA: ("reading data", {"facecolor": "#56b4e9"}),
    WorkKind.RESERVING: ("cudaMalloc, cudaFree", {"facecolor": "#d55e00"}),
    WorkKind.WAITING: ("the host waits", {"facecolor": "#dddddd"}),
}
"""Colours that the colour-blind tell apart (Okabe and Ito 2008)."""


def write_streams_plot(recording: Recording, report: RehearsalReport, path: str | Path) -> None:
    """Draw the step whose time the report tells.

    Raises:
        ZerokitError: as :func:`zerokit.reporting.plots.write_plot`.
    """
    time = report.time
    times = recording.facts.times
    assert time is not None, "no step was timed"
    assert times is not None
    ends = [0, *times.step_ends]
    end = ends[time.step]
    begin = end - round(time.step_seconds * 1e9)
    spans = recording.spans
    inside = spans[(spans["end"] > begin) & (spans["begin"] < end)]
    rows = sorted(np.unique(inside["stream"]).tolist(), key=lambda stream: (stream == HOST, stream))

    def draw(axes: Axes) -> None:
        for row, stream in enumerate(rows):
            _row(axes, inside[inside["stream"] == stream], row, begin, end)
        axes.set_yticks(range(len(rows)), [stream_words(stream) for stream in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, (end - begin) / 1e6)
        axes.set_xlabel("milliseconds of virtual time")
        axes.set_title(_title(report, time))
        plots.legend(axes, [_LOOKS[kind] for kind in _LOOKS if kind in inside["kind"]])

    def page() -> plots.Page:
        about = _title(report, time)
        return plots.Page("A step's streams", about, "", ["", "Time", "Share"], breakdown_rows(time))

    plots.write_plot(path, (13, 1.5 + 0.45 * len(rows)), draw, page)


def _row(axes: Axes, spans: Array, row: int, begin: int, end: int) -> None:
    for kind, (_, look) in _LOOKS.items():
        own = spans[spans["kind"] == kind]
        bars = _drawn(own, begin, end)
        if bars:
            axes.broken_barh(bars, (row - 0.4, 0.8), linewidth=0, **look)


def _drawn(spans: Array, begin: int, end: int) -> list[tuple[float, float]]:
    """Begin and length of bars in milliseconds."""
    gap = (end - begin) / _FINEST
    bars: list[list[int]] = []
    for first, last in zip(spans["begin"].tolist(), spans["end"].tolist(), strict=True):
        if bars and first - bars[-1][1] < gap:
            bars[-1][1] = max(last, bars[-1][1])
        else:
            bars.append([first, last])
    clipped = [(max(first, begin), min(last, end)) for first, last in bars]
    return [((first - begin) / 1e6, (last - first) / 1e6) for first, last in clipped]


def _title(report: RehearsalReport, time: TimeReport) -> str:
    name = Path(report.run.script).name
    return f"{name}, rank {report.rank}: step {time.step}, {1000 * time.step_seconds:,.1f} ms"
