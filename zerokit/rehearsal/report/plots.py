"""A picture of the memory of a rehearsal: bytes by category over the order of events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zerokit.rehearsal.recording import CATEGORY_CODES, Recording, Space
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.rehearsal.report.tables import category_rows
from zerokit.rehearsal.report.timeline import phase_runs, thinned
from zerokit.reporting import plots
from zerokit.reporting.categories import CATEGORIES, Category
from zerokit.reporting.phases import SHADES
from zerokit.units import GIB, format_bytes, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 4000
_CHARACTER = 0.011
"""As a share of the picture's width; over a phase that is narrower than its name nothing is written."""


def write_plot(
    recording: Recording, report: RehearsalReport, path: str | Path, gpu_memory_bytes: int
) -> None:
    """Draw device memory, stacked by category, with the phases behind it and the card's capacity.

    Raises:
        ZerokitError: as :func:`zerokit.reporting.plots.write_plot`.
    """

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
    """Draw what was held of each category, and name those of which something was."""
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
    return plots.Page(
        "Memory of a rehearsal",
        _title(report),
        f"One GPU has {format_bytes(gpu_memory_bytes)}. At the peak:",
        ["Category", "Bytes", "Share"],
        category_rows(report),
    )
