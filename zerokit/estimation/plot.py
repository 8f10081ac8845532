"""A picture of estimates: stacked bars of the GPU and of the host, run beside run."""

from __future__ import annotations

import html
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.errors import ConfigError
from zerokit.estimation.categories import by_category
from zerokit.estimation.states import host_at_peak
from zerokit.estimation.table import heading
from zerokit.files import write_file
from zerokit.memory import Estimate, Term
from zerokit.reporting.categories import CATEGORIES, LOOKS, category_words
from zerokit.reporting.phases import phase_words
from zerokit.units import GIB, format_bytes, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
_MOST_RUNS = 40
_CAPACITY_SHOWN = 2.5
"""The card's capacity is drawn up to so many times the largest peak; beyond, it would flatten all else."""
_WIDTH = 0.36


def check_plot(path: Path) -> None:
    """See that a plot can be drawn, before anything is counted.

    Raises:
        ZerokitError: matplotlib is not installed, or the name does not end in .png, .svg or .html.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            "a plot is written as PNG, SVG or HTML",
            where=str(path),
            hint="Name a file that ends in .png, .svg or .html",
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib is not installed", where="--plot", hint="Run pip install 'zerokit[plot]'"
        )


def write_plot(answers: Sequence[Estimate], path: str | Path, gpu_memory_bytes: int | None = None) -> None:
    """Draw the peak of the GPU and of the host of one rank, for each run, by category.

    Args:
        answers: from left to right; at most 40.
        path: ends in .png, .svg or .html; the last is one file that needs no other.
        gpu_memory_bytes: of one GPU, drawn as a line.

    Raises:
        ZerokitError: as :func:`check_plot`, too many runs, or the file cannot be written.
    """
    path = Path(path)
    check_plot(path)
    if len(answers) > _MOST_RUNS:
        raise ConfigError(
            f"{len(answers)} runs are more than a picture can show", where="--plot", hint="Sweep fewer values"
        )
    import matplotlib

    # Fixed, so that the same estimates give the same file.
    with matplotlib.rc_context({"hatch.linewidth": 0.5, "svg.hashsalt": "zerokit"}):
        figure = _draw(answers, gpu_memory_bytes)
        kind = path.suffix.lower()[1:]
        buffer = io.BytesIO()
        figure.savefig(
            buffer,
            format="png" if kind == "png" else "svg",
            dpi=150,
            metadata=None if kind == "png" else {"Date": None},
            bbox_inches="tight",
        )
    data = buffer.getvalue()
    if kind == "html":
        data = _page(answers, data.decode(), gpu_memory_bytes).encode()
    elif kind == "svg":
        data = b"\n".join(line.rstrip() for line in data.splitlines()) + b"\n"
    write_file(path, data)


def _draw(answers: Sequence[Estimate], gpu_memory_bytes: int | None) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 2.5 + 1.6 * len(answers)), 5.5), layout="constrained")
    axes = figure.add_subplot()
    for place, answer in enumerate(answers):
        _bar(axes, place - _WIDTH / 2 - 0.02, answer.device.terms_at_peak, "GPU")
        _bar(axes, place + _WIDTH / 2 + 0.02, host_at_peak(answer), "host")
        top = answer.device.peak_bytes / GIB
        # What may come on top, outside the allocator's books.
        axes.errorbar(
            place - _WIDTH / 2 - 0.02,
            top,
            yerr=[[0.0], [answer.device_high_bytes / GIB - top]],
            color="black",
            capsize=4,
            linewidth=1,
        )
    _mark_capacity(axes, answers, gpu_memory_bytes)
    _label(axes, answers)
    return figure


def _bar(axes: Axes, place: float, terms: Sequence[Term], name: str) -> None:
    bottom = 0.0
    for category, held in by_category(terms).items():
        if not held:
            continue
        colour, hatch = LOOKS[category]
        axes.bar(
            place,
            held / GIB,
            _WIDTH,
            bottom=bottom,
            facecolor=colour,
            hatch=hatch,
            edgecolor="black",
            linewidth=0.4,
        )
        bottom += held / GIB
    axes.annotate(
        name, (place, 0), xycoords=("data", "axes fraction"), xytext=(0, -4), textcoords="offset points",
        ha="center", va="top", fontsize=8,
    )  # fmt: skip
    axes.annotate(
        f"{bottom:.1f}", (place, bottom), xytext=(-2 if name == "GPU" else 0, 3), textcoords="offset points",
        ha="right" if name == "GPU" else "center", fontsize=8,
    )  # fmt: skip


def _mark_capacity(axes: Axes, answers: Sequence[Estimate], gpu_memory_bytes: int | None) -> None:
    highest = max(max(answer.device_high_bytes, answer.host.peak_bytes) for answer in answers)
    axes.set_ylim(0, highest * 1.06 / GIB)
    if gpu_memory_bytes is None or gpu_memory_bytes > _CAPACITY_SHOWN * highest:
        return
    capacity = gpu_memory_bytes / GIB
    axes.axhline(capacity, color="black", linewidth=1.6, linestyle="--")
    axes.annotate(
        f"one GPU, {format_bytes(gpu_memory_bytes)}", (1, capacity), xycoords=("axes fraction", "data"),
        xytext=(-4, 3), textcoords="offset points", ha="right", fontsize=8,
    )  # fmt: skip
    axes.set_ylim(0, max(highest / GIB, capacity) * 1.06)


def _label(axes: Axes, answers: Sequence[Estimate]) -> None:
    from matplotlib.patches import Patch

    varied = varied_sizes(answers)
    axes.set_xticks(range(len(answers)), [point_name(answer, varied) for answer in answers], fontsize=9)
    axes.tick_params(axis="x", length=0, pad=16)
    axes.set_xlim(-0.6, len(answers) - 0.4)
    axes.set_ylabel("peak of one rank, GiB")
    axes.set_title(_wrapped(heading(answers[0], without=varied)), fontsize=9, loc="left")
    shown = [
        category
        for category in CATEGORIES
        if any(
            by_category((*answer.device.terms_at_peak, *host_at_peak(answer)))[category] for answer in answers
        )
    ]
    patches = [
        Patch(
            facecolor=LOOKS[category][0],
            hatch=LOOKS[category][1],
            edgecolor="black",
            linewidth=0.4,
            label=category_words(category),
        )
        for category in reversed(shown)
    ]
    axes.legend(
        handles=patches,
        title="whisker: with context,\nNCCL, fragmentation",
        title_fontsize=8,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        fontsize=8,
    )


def varied_sizes(answers: Sequence[Estimate]) -> tuple[str, ...]:
    """Names of the sizes that are not the same in all runs; the stage if all are."""
    sizes = {name: {_size(answer, name) for answer in answers} for name in _NAMES}
    return tuple(name for name, values in sizes.items() if len(values) > 1)


_NAMES = ("zero_stage", "num_gpus", "micro_batch_size", "seq_len")


def _size(answer: Estimate, name: str) -> int | None:
    run = answer.run
    value = run.world_size if name == "num_gpus" else getattr(run, name)
    return value if isinstance(value, int) else None


def point_name(answer: Estimate, varied: Sequence[str]) -> str:
    """What tells a run from the others: ``ZeRO-2, 8 GPUs``."""
    run = answer.run
    words = {
        "zero_stage": f"ZeRO-{run.zero_stage}",
        "num_gpus": quantity(run.world_size, "GPU"),
        "micro_batch_size": f"batch {run.micro_batch_size}",
        "seq_len": f"{run.seq_len or 0:,} tokens",
    }
    return "\n".join(words[name] for name in (varied or ("zero_stage",)))


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, 100))


def _page(answers: Sequence[Estimate], picture: str, gpu_memory_bytes: int | None) -> str:
    """One HTML file: the picture, and its numbers as a table."""
    varied = varied_sizes(answers)
    title = html.escape(heading(answers[0], without=varied))
    columns = ["", *(category_words(category) for category in CATEGORIES), "peak", "in"]
    rows = []
    for answer in answers:
        name = ", ".join(point_name(answer, varied).split("\n"))
        for where, terms, peak, phase in (
            ("GPU", answer.device.terms_at_peak, answer.device.peak_bytes, answer.device.peak_phase),
            ("host, one rank", host_at_peak(answer), answer.host.peak_bytes, answer.host.peak_phase),
        ):
            held = [format_bytes(size) if size else "" for size in by_category(terms).values()]
            rows.append([f"{name}, {where}", *held, format_bytes(peak), phase_words(phase)])
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    capacity = "" if gpu_memory_bytes is None else f"<p>One GPU has {format_bytes(gpu_memory_bytes)}.</p>"
    return _HTML.format(
        title=title, picture=picture[picture.index("<svg") :], head=head, body=body, capacity=capacity
    )


_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>zerokit estimate: {title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-size: 0.9em; }}
th, td {{ border-bottom: 1px solid #ccc; padding: 0.3em 0.8em; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
</head>
<body>
<h1>Where the bytes go</h1>
<p>{title}</p>
{picture}
{capacity}
<table>
<tr>{head}</tr>
{body}
</table>
</body>
</html>
"""
