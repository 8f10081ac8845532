"""Plots estimates: stacked bars of GPU and host memory per run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.errors import ConfigError
from zerokit.estimation.table import SIZES, heading, sizes
from zerokit.memory import Estimate, Term, by_category
from zerokit.reporting import plots
from zerokit.reporting.categories import CATEGORIES, category_words
from zerokit.reporting.phases import phase_words
from zerokit.units import GIB, format_bytes, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_RUNS = 40
_WIDTH = 0.36


def write_plot(answers: Sequence[Estimate], path: str | Path, gpu_memory_bytes: int | None = None) -> None:
    """Draw the peaks of GPU and host of one rank, for each run by category.

    Args:
        answers: from left to right; at most 40.
        path: ends in .png, .svg or .html; the last is self-contained.
        gpu_memory_bytes: of one GPU, drawn as a line.

    Raises:
        ZerokitError: see :func:`zerokit.reporting.plots.write_plot`, or there are too many runs.
    """
    if len(answers) > _MOST_RUNS:
        raise ConfigError(
            f"{len(answers)} runs are more than a picture can show", where="--plot", hint="Sweep fewer values"
        )
    plots.write_plot(
        path,
        (max(7.0, 2.5 + 1.6 * len(answers)), 5.5),
        lambda axes: _draw(axes, answers, gpu_memory_bytes),
        lambda: _page(answers, gpu_memory_bytes),
    )


def _draw(axes: Axes, answers: Sequence[Estimate], gpu_memory_bytes: int | None) -> None:
    cards = [place - _WIDTH / 2 - 0.02 for place in range(len(answers))]
    for place, answer in zip(cards, answers, strict=True):
        _bar(axes, place, answer.device.terms_at_peak, "GPU")
        _bar(axes, place + _WIDTH + 0.04, answer.host.terms_at_peak, "host")
        top = answer.device.peak_bytes / GIB
        # Memory that torch's allocator does not count.
        axes.errorbar(
            place,
            top,
            yerr=[[0.0], [answer.device_high_bytes / GIB - top]],
            color="black",
            capsize=4,
            linewidth=1,
        )
    highest = max(max(answer.device_high_bytes, answer.host.peak_bytes) for answer in answers)
    over = [(place - _WIDTH / 2, place + _WIDTH / 2) for place in cards]
    plots.mark_capacity(axes, highest, gpu_memory_bytes, over)
    _label(axes, answers)


def _bar(axes: Axes, place: float, terms: Sequence[Term], name: str) -> None:
    bottom = 0.0
    for category, held in by_category(terms).items():
        if held:
            axes.bar(place, held / GIB, _WIDTH, bottom=bottom, **plots.look(category))
            bottom += held / GIB
    # Below the bar, where nothing else is drawn.
    axes.annotate(
        f"{name}\n{bottom:.1f}", (place, 0), xycoords=("data", "axes fraction"), xytext=(0, -4),
        textcoords="offset points", ha="center", va="top", fontsize=plots.SMALL,
    )  # fmt: skip


def _label(axes: Axes, answers: Sequence[Estimate]) -> None:
    varied = varied_sizes(answers)
    axes.set_xticks(range(len(answers)), [point_name(answer, varied) for answer in answers], fontsize=9)
    axes.tick_params(axis="x", length=0, pad=28)
    axes.set_xlim(-0.6, len(answers) - 0.4)
    axes.set_ylabel("peak of one rank, GiB")
    title = "\n".join(textwrap.wrap(heading(answers[0], without=varied), 100))
    axes.set_title(title, fontsize=9, loc="left")
    drawn = [
        term for answer in answers for term in (*answer.device.terms_at_peak, *answer.host.terms_at_peak)
    ]
    plots.category_legend(
        axes,
        [category for category, held in by_category(drawn).items() if held],
        "whisker: with context,\nNCCL, fragmentation",
    )


def varied_sizes(answers: Sequence[Estimate]) -> tuple[str, ...]:
    """Names of the sizes that differ between runs."""
    return tuple(name for name in SIZES if len({sizes(answer)[name] for answer in answers}) > 1)


def point_name(answer: Estimate, varied: Sequence[str]) -> str:
    """The label of a run: ``ZeRO-2, 8 GPUs``."""
    run = answer.run
    words = {
        "gpu": "" if run.cluster.gpu is None else run.cluster.gpu.name,
        "zero_stage": run.sharding,
        "num_gpus": quantity(run.world_size, "GPU"),
        "micro_batch_size": f"batch {run.micro_batch_size}",
        "seq_len": f"{run.seq_len or 0:,} tokens",
    }
    return "\n".join(words[name] for name in (varied or ("zero_stage",)))


def _page(answers: Sequence[Estimate], gpu_memory_bytes: int | None) -> plots.Page:
    varied = varied_sizes(answers)
    rows = []
    for answer in answers:
        name = ", ".join(point_name(answer, varied).split("\n"))
        for where, terms, peak, phase in (
            ("GPU", answer.device.terms_at_peak, answer.device.peak_bytes, answer.device.peak_phase),
            ("host, one rank", answer.host.terms_at_peak, answer.host.peak_bytes, answer.host.peak_phase),
        ):
            held = [format_bytes(size) if size else "" for size in by_category(terms).values()]
            rows.append([f"{name}, {where}", *held, format_bytes(peak), phase_words(phase)])
    return plots.Page(
        "Where the bytes go",
        heading(answers[0], without=varied),
        "" if gpu_memory_bytes is None else f"One GPU has {format_bytes(gpu_memory_bytes)}.",
        ["", *map(category_words, CATEGORIES), "peak", "in"],
        rows,
    )
