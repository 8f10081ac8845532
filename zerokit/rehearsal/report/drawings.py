"""The files that a rehearsal draws: trace, snapshot, and plots of memory and of a step's streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zerokit.rehearsal.native.clock import HOST_STREAM, WorkKind
from zerokit.rehearsal.recording import CATEGORY_CODES, Array, Recording, Space
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.rehearsal.report.snapshot import write_snapshot
from zerokit.rehearsal.report.tables import breakdown_rows, category_rows
from zerokit.rehearsal.report.trace import phase_runs, stream_words, thinned, write_trace
from zerokit.reporting import plots
from zerokit.reporting.categories import CATEGORIES, Category
from zerokit.reporting.phases import SHADES
from zerokit.units import GIB, format_bytes, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 4000
_CHARACTER = 0.011
"""Share of the picture's width; a phase that is narrower than its name has none."""
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
"""Colours for the colour-blind (Okabe and Ito 2008)."""


class Drawings(NamedTuple):
    """Where to write each; None leaves it out."""

    trace: str | Path | None = None
    plot: str | Path | None = None
    timeline: str | Path | None = None
    memory_snapshot: str | Path | None = None

    def write(self, recording: Recording, report: RehearsalReport, gpu_memory_bytes: int) -> list[str]:
        """Write the files of one rank, and return warnings about what could not be drawn.

        Raises:
            ZerokitError: a file cannot be written.
        """
        if self.trace is not None:
            write_trace(recording, self.trace)
        if self.plot is not None:
            write_plot(recording, report, self.plot, gpu_memory_bytes)
        if self.memory_snapshot is not None:
            write_snapshot(recording, self.memory_snapshot)
        if self.timeline is not None and report.time is not None:
            write_streams_plot(recording, report, self.timeline)
        elif self.timeline is not None:
            return ["--timeline: no step was timed, so there is none to draw"]
        return []


def write_plot(
    recording: Recording, report: RehearsalReport, path: str | Path, gpu_memory_bytes: int
) -> None:
    """Draw device memory, stacked by category, with the phases behind it and the card's capacity."""

    def draw(axes: Axes) -> None:
        _shade_phases(axes, recording)
        shown = _stack(axes, recording)
        plots.mark_capacity(axes, report.device.peak_bytes, gpu_memory_bytes)
        axes.set_title(_title(report), pad=18)
        axes.set_xlabel("allocations and releases, in order (dotted: end of an optimizer step)")
        axes.set_ylabel("allocated on the GPU, GiB")
        plots.category_legend(axes, shown)
        plots.phase_legend(axes, report.device.by_phase)

    plots.write_plot(path, (11, 5.5), draw, lambda: _page(report, gpu_memory_bytes))


def _stack(axes: Axes, recording: Recording) -> list[Category]:
    """Draw memory by category; the legend omits empty ones."""
    total = recording.running_bytes(Space.DEVICE)
    places = thinned(total, _MOST_POINTS)
    # The last level lasts until the right edge.
    edges = np.append(places, len(total))
    bottom = np.zeros(len(edges))
    shown = []
    for category in CATEGORIES:
        held = recording.running_bytes(Space.DEVICE, category=CATEGORY_CODES.index(category))[places] / GIB
        if held.any():
            top = bottom + np.append(held, held[-1])
            axes.fill_between(edges, bottom, top, step="post", **plots.look(category))
            bottom = top
            shown.append(category)
    return shown


def _shade_phases(axes: Axes, recording: Recording) -> None:
    width = max(1, len(recording.events))
    for begin, end, name in phase_runs(recording):
        axes.axvspan(begin, end, facecolor=SHADES[name], linewidth=0, zorder=0)
        if (end - begin) / width >= _CHARACTER * len(name):
            middle = (begin + end) / 2
            axes.annotate(
                name, (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", fontsize=plots.SMALL,
            )  # fmt: skip
    for mark in recording.step_marks:
        axes.axvline(mark.event, color="0.3", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, width)


def _title(report: RehearsalReport) -> str:
    return (
        f"{Path(report.run.script).name} on {quantity(report.world_size, 'GPU')}, rank {report.rank}: "
        f"peak {format_bytes(report.device.peak_bytes)} in {report.device.peak_phase}"
    )


def _page(report: RehearsalReport, gpu_memory_bytes: int) -> plots.Page:
    note = f"One GPU has {format_bytes(gpu_memory_bytes)}. At the peak:"
    columns = ["Category", "Bytes", "Share"]
    return plots.Page("Memory of a rehearsal", _title(report), note, columns, category_rows(report))


def write_streams_plot(recording: Recording, report: RehearsalReport, path: str | Path) -> None:
    """Draw the step whose time the report has."""
    time, times = report.time, recording.facts.times
    assert time is not None, "no step was timed"
    assert times is not None
    end = times.step_ends[time.step - 1]
    begin = end - round(time.step_seconds * 1e9)
    spans = recording.spans
    inside = spans[(spans["end"] > begin) & (spans["begin"] < end)]
    name = Path(report.run.script).name
    title = f"{name}, rank {report.rank}: step {time.step}, {1000 * time.step_seconds:,.1f} ms"
    rows = sorted(np.unique(inside["stream"]).tolist(), key=lambda stream: (stream == HOST_STREAM, stream))

    def draw(axes: Axes) -> None:
        for row, stream in enumerate(rows):
            _row(axes, inside[inside["stream"] == stream], row, begin, end)
        axes.set_yticks(range(len(rows)), [stream_words(stream) for stream in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, (end - begin) / 1e6)
        axes.set_xlabel("milliseconds of virtual time")
        axes.set_title(title)
        plots.legend(axes, [_LOOKS[kind] for kind in _LOOKS if kind in inside["kind"]])

    def page() -> plots.Page:
        return plots.Page("A step's streams", title, "", ["", "Time", "Share"], breakdown_rows(time))

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
