"""One style and one writer for pictures of memory: PNG, SVG, or an HTML page."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit.errors import ZerokitError
from zerokit.extras import require
from zerokit.files import write_file
from zerokit.reporting.categories import CATEGORIES, LOOKS, Category, category_words
from zerokit.reporting.phases import SHADES
from zerokit.reporting.tables import Row
from zerokit.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".html")
SMALL = 8
"""Font size of small text."""
_CAPACITY_SHOWN = 2.5
"""A GPU's capacity is drawn up to this multiple of the highest point, to keep the plot readable."""


class Page(NamedTuple):
    """Text around the picture in an HTML file."""

    heading: str
    about: str
    """A line above the picture."""
    note: str
    """A line below it, or nothing."""
    columns: Row
    rows: Sequence[Row]
    """Numbers of the picture."""


def check_plot(path: str | Path, option: str = "--plot") -> None:
    """Check that a plot can be drawn, before long work begins.

    Raises:
        ZerokitError: matplotlib is not installed, or the name does not end in .png, .svg or .html.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise ZerokitError(
            "a plot is written as PNG, SVG or HTML",
            where=str(path),
            hint="Name a file that ends in .png, .svg or .html",
        )
    require("plot", where=option)


def write_plot(
    path: str | Path, size: tuple[float, float], draw: Callable[[Axes], None], page: Callable[[], Page]
) -> None:
    """Draw a picture and write it.

    Args:
        path: ends in .png, .svg or .html.
        size: width and height in inches.
        draw: draws on the given axes.
        page: text around the picture in HTML.

    Raises:
        ZerokitError: see :func:`check_plot`, or the file cannot be written.
    """
    check_plot(path)
    import matplotlib
    from matplotlib.figure import Figure

    kind = Path(path).suffix.lower()[1:]
    picture = io.BytesIO()
    # Fixed, so that equal numbers give equal files.
    with matplotlib.rc_context({"hatch.linewidth": 0.5, "svg.hashsalt": "zerokit"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        is_png = kind == "png"
        figure.savefig(
            picture,
            format="png" if is_png else "svg",
            dpi=150,
            metadata=None if is_png else {"Date": None},
            bbox_inches="tight",
        )
    data = picture.getvalue()
    if kind == "html":
        data = _html(page(), data.decode()).encode()
    elif kind == "svg":
        data = b"\n".join(line.rstrip() for line in data.splitlines()) + b"\n"
    write_file(path, data, follow_links=True)


def look(category: Category) -> dict[str, Any]:
    """matplotlib arguments for an area of a category."""
    colour, hatch = LOOKS[category]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}


def mark_capacity(
    axes: Axes,
    highest_bytes: int,
    gpu_memory_bytes: int | None,
    over: Sequence[tuple[float, float]] | None = None,
) -> None:
    """Scale the GiB axis to `highest_bytes`, and draw the GPU's capacity if it is near enough.

    Args:
        axes: the axes.
        highest_bytes: of what is drawn.
        gpu_memory_bytes: of one GPU, if known.
        over: intervals of the other axis that show a GPU; None: everywhere.
    """
    from matplotlib.lines import Line2D

    highest = max(highest_bytes, 1) / GIB
    axes.set_ylim(0, highest * 1.06)
    if gpu_memory_bytes is None or gpu_memory_bytes / GIB > _CAPACITY_SHOWN * highest:
        return
    capacity = gpu_memory_bytes / GIB
    style: dict[str, Any] = {"color": "black", "linewidth": 1.6, "linestyle": "--"}
    if over is None:
        axes.axhline(capacity, **style)
    else:
        axes.hlines([capacity] * len(over), *zip(*over, strict=True), **style)
    axes.set_ylim(0, max(highest, capacity) * 1.06)
    _legend(axes, [Line2D([], [], label=f"one GPU, {format_bytes(gpu_memory_bytes)}", **style)], "center")


def legend(axes: Axes, looks: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """A legend beside the picture; each entry has matplotlib arguments."""
    from matplotlib.patches import Patch

    _legend(axes, [Patch(label=words, **look) for words, look in looks], "upper")


def category_legend(axes: Axes, shown: Iterable[Category], title: str | None = None) -> None:
    """Legend of categories at the upper right, topmost first."""
    from matplotlib.patches import Patch

    present = set(shown)
    stacked = [category for category in reversed(CATEGORIES) if category in present]
    _legend(axes, [Patch(**look(name), label=category_words(name)) for name in stacked], "upper", title)


def phase_legend(axes: Axes, shown: Iterable[str]) -> None:
    """Legend of phases at the lower right."""
    from matplotlib.patches import Patch

    shades = [Patch(facecolor=SHADES[name], edgecolor="black", linewidth=0.5, label=name) for name in shown]
    _legend(axes, shades, "lower", "phase")


def _legend(axes: Axes, shown: Sequence[Artist], place: str, title: str | None = None) -> None:
    from matplotlib.legend import Legend

    beside = Legend(
        axes,
        shown,
        [str(one.get_label()) for one in shown],
        title=title,
        title_fontsize=SMALL,
        loc=f"{place} left",
        bbox_to_anchor=(1, {"upper": 1.0, "center": 0.5, "lower": 0.0}[place]),
        frameon=False,
        fontsize=SMALL,
    )
    axes.add_artist(beside)
    beside.set_clip_on(False)  # which lets the layout make room for it


def _html(page: Page, picture: str) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in page.columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in page.rows
    )
    return (
        Path(__file__)
        .with_name("page.html")
        .read_text(encoding="utf-8")
        .format(
            heading=html.escape(page.heading),
            about=html.escape(page.about),
            picture=picture[picture.index("<svg") :],
            note=f"<p>{html.escape(page.note)}</p>" if page.note else "",
            head=head,
            body=body,
        )
    )
