"""Pages in Chromium, which ``make test`` installs where it can. Pictures stay in pytest's folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.pages import documents, hostile, plan
from zerokit.reporting.page import write_page

pytestmark = pytest.mark.slow

KINDS = ("plan", "estimate", "sweep", "rehearsal", "run")
WIDTHS = (360, 768, 1280)
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        line = "pages are tested in Chromium: apt-get install chromium"
        pytest.fail(line) if os.environ.get("CI") else pytest.skip(line)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox; the pages are our own.
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for kind, data in documents().items():
        write_page(folder / f"{kind}.html", data)
        write_page(folder / f"{kind}-hostile.html", hostile(data))
    return folder


class Visit:
    """A page that is open, with all that went wrong on it."""

    def __init__(self, browser: Any, file: Path, width: int = 1280, scheme: str = "light", **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:")) else self.wrong.append(request.url),
        )
        self.page.goto(file.as_uri())

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_accessible(browser: Any, pages: Path, kind: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with Visit(browser, pages / f"{kind}.html", scheme="dark" if kind == "plan" else "light") as page:
        found = Axe().run(page).response["violations"]
        bad = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not bad, json.dumps(bad, indent=1)[:3000]


@pytest.mark.parametrize("width", WIDTHS)
def test_as_wide_as_the_screen(browser: Any, pages: Path, width: int) -> None:
    with Visit(browser, pages / "plan.html", width) as page:
        page.screenshot(path=pages / f"plan-{width}.png", full_page=True)
        for kind in KINDS:
            page.goto((pages / f"{kind}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_attack_in_every_name_does_nothing(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "plan-hostile.html") as page:
        for kind in KINDS:
            page.goto((pages / f"{kind}-hostile.html").as_uri())
            page.wait_for_load_state()
            assert page.locator("img").count() == 0


def test_print_has_all_rows(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "plan.html") as page:
        page.emulate_media(media="print")
        assert page.locator(".controls").is_hidden()
        page.pdf(path=pages / "plan.pdf", prefer_css_page_size=True)
    assert (pages / "plan.pdf").read_bytes().startswith(b"%PDF")


def test_it_can_be_read_without_a_script(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "plan.html", java_script_enabled=False) as page:
        assert page.locator("#configurations tbody tr:visible").count() == len(plan()["considered"])
        assert page.locator(".controls").is_hidden()
        assert page.locator(".chart .point").count() == len(plan()["considered"])


def column(page: Any, name: str) -> list[str]:
    """The visible cells of a column of configurations."""
    names = [text.strip() for text in page.locator("#configurations thead th").all_inner_texts()]
    place = next(place for place, text in enumerate(names) if text.split(" ")[0:1] == name.split(" ")[0:1])
    rows = page.locator("#configurations tbody tr:visible")
    return rows.evaluate_all("(rows, place) => rows.map((row) => row.cells[place].textContent.trim())", place)


def test_the_table_sorts_by_mouse_and_keyboard(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "plan.html") as page:
        heading = page.locator("#configurations th", has_text="Hours")
        heading.locator("button").click()
        hours = [float(text) for text in column(page, "Hours")]
        assert hours == sorted(hours)
        assert heading.get_attribute("aria-sort") == "ascending"
        heading.locator("button").focus()
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "descending"
        assert [float(text) for text in column(page, "Hours")] == sorted(hours, reverse=True)
        assert page.locator("#configurations [aria-sort]").count() == 1


def test_filters_change_table_plot_and_summary(browser: Any, pages: Path) -> None:
    considered = plan()["considered"]
    with Visit(browser, pages / "plan.html") as page:
        page.locator("#only").select_option("L40S")
        cards = sum(one["gpu"] == "L40S" for one in considered)
        assert page.locator("#configurations tbody tr:visible").count() == cards
        assert page.locator(".chart .point:visible").count() == cards
        assert page.locator("#found").inner_text().startswith(f"{cards} of {len(considered)} configurations.")
        page.get_by_label("Contains").fill("zero-3 tight")
        assert all("ZeRO-3" in text for text in column(page, "Settings"))
        page.get_by_label("Contains").fill("nothing has this")
        assert page.locator("#found").inner_text() == f"0 of {len(considered)} configurations. None matches."
        page.get_by_role("button", name="Reset").click()
        page.locator("#configurations tr[hidden]").first.wait_for(state="detached")
        assert page.locator("#configurations tbody tr:visible").count() == len(considered)


def test_the_price_ranks_anew(browser: Any, pages: Path) -> None:
    """The price of one card, as an oracle computes it from `considered`."""
    considered, card, factor = plan()["considered"], "H100-SXM", 3.0
    costs = [
        one["other_usd"] + (one["cost_usd"] - one["other_usd"]) * (factor if one["gpu"] == card else 1)
        for one in considered
    ]
    best = min(
        (one["is_network_assumed"], one["hours"] > 8 or cost > 100, one["fit"] != "fits", cost, one["gpu"])
        for one, cost in zip(considered, costs, strict=True)
    )
    with Visit(browser, pages / "plan.html") as page:
        assert column(page, "GPUs")[0].startswith("2 x H100-SXM")
        before = page.locator('.point[data-row="0"] circle').last.get_attribute("cy")
        page.get_by_label("Price of").select_option(card)
        slider = page.locator("#price")
        slider.focus()
        page.keyboard.press("End")
        assert slider.input_value() == f"{100 * factor:.0f}"
        assert page.locator("#price-now").inner_text() == "300 %: $7.47 per GPU-hour"
        assert best[-1] in column(page, "GPUs")[0]
        shown = page.locator("#configurations tbody tr:visible").first.locator("td").last.inner_text()
        assert float(shown.replace(",", "")) == pytest.approx(best[3], abs=0.01)
        assert page.locator('.point[data-row="0"] circle').last.get_attribute("cy") != before


def test_the_keyboard_goes_from_mark_to_mark(browser: Any, pages: Path) -> None:
    with Visit(browser, pages / "plan.html") as page:
        assert page.locator('.chart .point[tabindex="0"]').count() == 1
        page.get_by_role("button", name="Reset").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Home")
        seen = []
        for _ in plan()["considered"]:
            seen.append(page.evaluate("document.activeElement.dataset.row"))
            label = page.evaluate("document.activeElement.querySelector('title').textContent")
            assert page.locator("#hovered").inner_text() == label
            page.keyboard.press("ArrowRight")
        assert len(set(seen)) == len(plan()["considered"])
        assert page.evaluate("document.activeElement.dataset.row") == seen[0]
        last = page.locator(f'.point[data-row="{len(plan()["considered"]) - 1}"]')
        last.locator("circle").last.hover()
        assert page.locator("#hovered").inner_text() == last.locator("title").text_content()
