from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zerokit.errors import ZerokitError
from zerokit.extras import install_command
from zerokit.reporting.categories import CATEGORIES
from zerokit.reporting.plots import Page, category_legend, check_plot, look, mark_capacity, write_plot
from zerokit.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


def draw(axes: Axes) -> None:
    for place, category in enumerate(CATEGORIES):
        axes.bar(place, 1, **look(category))
    category_legend(axes, CATEGORIES, "a title")


def page() -> Page:
    return Page("A <heading>", "about & about", "a note", ["", "Bytes"], [["a < b", "1 B"]])


def test_other_formats_are_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match=r"a\.pdf: a plot is written as PNG, SVG or HTML"):
        check_plot(Path("a.pdf"))
    with pytest.raises(ZerokitError, match="PNG, SVG or HTML"):
        write_plot(tmp_path / "a", (1, 1), lambda axes: pytest.fail("drawn"), page)


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZerokitError, match=r"needs the packages of zerokit\[plot\]") as raised:
        check_plot(Path("a.png"))
    assert raised.value.hint == f"Run {install_command('plot')}"


@pytest.mark.usefixtures("_matplotlib")
def test_the_legend_names_the_topmost_layer_first(tmp_path: Path) -> None:
    write_plot(tmp_path / "a.svg", (4, 3), draw, page)
    words = re.findall(r"<!-- (.*?) -->", (tmp_path / "a.svg").read_text())
    names = [category.replace("_", " ") for category in reversed(CATEGORIES)]
    assert [word for word in words if word in names] == names
    assert "a title" in words


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize(("capacity", "drawn"), [(None, False), (24, True), (26, False)])
def test_a_capacity_far_above_all_else_is_not_drawn(
    capacity: int | None, drawn: bool, tmp_path: Path
) -> None:
    gpu_memory = None if capacity is None else capacity * GIB
    write_plot(tmp_path / "a.svg", (4, 3), lambda axes: mark_capacity(axes, 10 * GIB, gpu_memory), page)
    assert (f"one GPU, {capacity}.00 GiB" in (tmp_path / "a.svg").read_text()) == drawn


@pytest.mark.usefixtures("_matplotlib")
def test_html_escapes_what_it_is_given_and_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_plot(tmp_path / "a.html", (4, 3), draw, page)
    text = (tmp_path / "a.html").read_text()
    for part in ("A &lt;heading&gt;", "about &amp; about", "<td>a &lt; b</td>", "<p>a note</p>", "<svg"):
        assert part in text
    with pytest.raises(ZerokitError, match="absent"):
        write_plot(tmp_path / "absent" / "a.html", (4, 3), draw, page)
