"""A picture of the memory of a rehearsal: bytes by category over the order of events."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zerokit.errors import ZerokitError
from zerokit.files import new_file
from zerokit.rehearsal.recording import CATEGORY_CODES, Recording, Space
from zerokit.rehearsal.report import RehearsalReport
from zerokit.rehearsal.timeline import phase_runs, thinned
from zerokit.reporting.categories import LOOKS, category_words
from zerokit.units import GIB, format_bytes, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
_MOST_POINTS = 4000
_CAPACITY_SHOWN = 2.5
"""The card's capacity is drawn up to so many times the peak; beyond, the line would flatten all else."""

_PHASE_SHADES = {
    "init": "0.97",
    "forward": "0.93",
    "loss": "0.80",
    "backward": "0.88",
    "step": "0.76",
    "between": "1.0",
}
_NARROWEST_LABEL = 0.05
"""A phase narrower than this share of the picture gets no name written over it."""


def check_plot(path: Path) -> None:
    """See that a plot can be drawn, before anything long begins.

    Raises:
        ZerokitError: matplotlib is not installed, or the name does not end in .png or .svg.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ZerokitError(
            "a plot is written as PNG or SVG", where=str(path), hint="Name a file that ends in .png or .svg"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ZerokitError(
            "matplotlib is not installed", where="--plot", hint="Run pip install 'zerokit[plot]'"
        )


def write_plot(
    recording: Recording, report: RehearsalReport, path: str | Path, gpu_memory_bytes: int
) -> None:
    """Draw device memory, stacked by category, with the phases behind it and the card's capacity.

    Raises:
        ZerokitError: as :func:`check_plot`, or the file cannot be written.
    """
    path = Path(path)
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    # Fixed, so that the same recording gives the same file.
    with matplotlib.rc_context({"hatch.linewidth": 0.5, "svg.hashsalt": "zerokit"}):
        figure = Figure(figsize=(11, 5.5), layout="constrained")
        axes = figure.add_subplot()
        _shade_phases(axes, recording)
        _stack(axes, recording)
        _mark_capacity(axes, report.device.peak_bytes, gpu_memory_bytes)
        _label(axes, report)
        _legends(figure, axes, report)
        kind = path.suffix.lower()[1:]
        with new_file(path) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _stack(axes: Axes, recording: Recording) -> None:
    total = recording.running_bytes(Space.DEVICE)
    places = thinned(total, _MOST_POINTS)
    # The last level lasts until the right edge.
    edges = np.append(places, len(total))
    bottom = np.zeros(len(edges))
    for category, (colour, hatch) in LOOKS.items():
        held = recording.running_bytes(Space.DEVICE, category=CATEGORY_CODES.index(category))[places] / GIB
        if not held.any():
            continue
        top = bottom + np.append(held, held[-1])
        axes.fill_between(
            edges,
            bottom,
            top,
            step="post",
            facecolor=colour,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.3,
            label=category_words(category),
        )
        bottom = top


def _shade_phases(axes: Axes, recording: Recording) -> None:
    width = max(1, len(recording.events))
    for begin, end, name in phase_runs(recording):
        axes.axvspan(begin, end, facecolor=_PHASE_SHADES[name], linewidth=0, zorder=0)
        if (end - begin) / width >= _NARROWEST_LABEL:
            middle = (begin + end) / 2
            axes.annotate(
                name, (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", ha="center", fontsize=8,
            )  # fmt: skip
    for mark in recording.step_marks:
        axes.axvline(mark.event, color="0.3", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, width)


def _mark_capacity(axes: Axes, peak_bytes: int, gpu_memory_bytes: int) -> None:
    axes.set_ylim(0, max(peak_bytes * 1.05, 1) / GIB)
    if gpu_memory_bytes <= _CAPACITY_SHOWN * peak_bytes:
        label = f"GPU, {format_bytes(gpu_memory_bytes)}"
        capacity = gpu_memory_bytes / GIB
        axes.axhline(capacity, color="black", linewidth=1.6, linestyle="--", label=label)
        axes.set_ylim(0, max(peak_bytes / GIB, capacity) * 1.05)


def _label(axes: Axes, report: RehearsalReport) -> None:
    axes.set_title(
        f"{Path(report.run.script).name} on {quantity(report.world_size, 'GPU')}, rank {report.rank}: "
        f"peak {format_bytes(report.device.peak_bytes)} in {report.device.peak_phase}",
        pad=18,
    )
    axes.set_xlabel("allocations and releases, in order (dotted: end of an optimizer step)")
    axes.set_ylabel("allocated on the GPU, GiB")


def _legends(figure: Figure, axes: Axes, report: RehearsalReport) -> None:
    """Beside the picture; the layout makes room for legends of a figure, not for those of axes."""
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # The topmost layer first, as in the picture.
        figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)

    shades = [
        Patch(facecolor=_PHASE_SHADES[name], edgecolor="black", linewidth=0.5, label=name)
        for name in report.device.by_phase
    ]
    figure.legend(handles=shades, title="phase", loc="outside right lower", frameon=False, fontsize=8)
