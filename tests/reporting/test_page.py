from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.reporting.pages import HOSTILE, documents, hostile, plan
from zerokit.errors import ZerokitError
from zerokit.planning.report import PlanReport
from zerokit.rehearsal.report.report import RehearsalReport
from zerokit.reporting.page import page_of_file, page_text, write_picture

KINDS = ("plan", "estimate", "sweep", "rehearsal", "run")
MOST_BYTES = 300_000


class Tags(HTMLParser):
    """All start tags with their attributes, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def titles(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", page)


def test_the_documents_are_what_the_commands_write() -> None:
    report = PlanReport.model_validate(plan())
    RehearsalReport.model_validate(report.plans[0].rehearsal)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "plan",
            [
                "Plans",
                "Hours and dollars",
                "Memory of one GPU",
                "Memory over a step",
                "Streams of a step",
                "Where the time goes",
                "Bill",
                "ds_config",
                "Why not",
                "Assumptions",
                "Prices",
                "Repeat this plan",
            ],
        ),
        ("estimate", ["Memory of one GPU", "Where each byte comes from"]),
        ("sweep", ["Memory of one GPU"]),
        (
            "rehearsal",
            [
                "Memory of one GPU",
                "Memory over a step",
                "Streams of a step",
                "Where the time goes",
                "Communication",
                "ds_config",
                "Warnings",
                "Run",
            ],
        ),
        ("run", ["Expected and measured", "Loss", "ds_config", "Recipe", "Run"]),
    ],
)
def test_only_sections_with_data_are_shown(kind: str, expected: list[str]) -> None:
    page = page_text(documents()[kind])
    assert titles(page) == expected
    links = [one["href"] for one in Tags(page).of("a") if (one["href"] or "").startswith("#")]
    assert links[1:] == ["#" + title.lower().replace(" ", "-") for title in expected]


def test_what_has_no_plan_has_a_page() -> None:
    data = {**plan(), "plans": [], "considered": [], "meets_limits": False, "verdict": "Nothing meets the limits"}
    page = page_text(data)
    assert titles(page) == ["Why not", "Assumptions", "Prices", "Repeat this plan"]
    assert 'class="verdict bad">Nothing meets the limits' in page


def test_own_gpus_without_a_price_have_no_plot_of_dollars() -> None:
    data = plan()
    for one in data["considered"]:
        one |= {"cost_usd": 0.0, "usd_per_gpu_hour": 0.0, "other_usd": 0.0}
    page = page_text(data)
    assert 'id="configurations"' in page
    assert 'class="point' not in page


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_asks_for_nothing_and_is_small(kind: str) -> None:
    page = page_text(documents()[kind])
    assert len(page.encode()) <= MOST_BYTES
    tags = Tags(page)
    policy = next(one["content"] for one in tags.of("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert all(one["href"] == "data:," for one in tags.of("link"))
    assert not [tag for tag, attributes in tags.tags if "src" in attributes or "style" in attributes]


def test_many_configurations_stay_small() -> None:
    data = plan()
    data["considered"] = [
        {**one, "cost_usd": one["cost_usd"] + number} for one in data["considered"] for number in range(27)
    ]
    page = page_text(data)
    assert len(page.encode()) <= MOST_BYTES
    assert f"{len(data['considered']) - 250:,} more configurations rank behind these" in page


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_users_are_text(kind: str) -> None:
    tags = Tags(page_text(hostile(documents()[kind])))
    assert len(tags.of("script")) == 1
    assert not tags.of("img")
    assert not [name for _, attributes in tags.tags for name in attributes if name.startswith("on")]
    assert "</script><script>alert(1)</script><img src=x" in tags.text
    assert HOSTILE[-8:] in tags.text  # no template evaluates it


def test_only_https_sources_are_links() -> None:
    data: dict[str, Any] = plan()
    data["prices"][0]["source"] = "javascript:alert(1)"
    hrefs = [one["href"] or "" for one in Tags(page_text(data)).of("a")]
    assert not [href for href in hrefs if not href.startswith(("#", "https://"))]
    assert sum(href.startswith("https://") for href in hrefs) == len(data["prices"]) - 1


def test_a_curve_that_contradicts_itself_is_left_out() -> None:
    data = plan()["plans"][0]["rehearsal"]
    data["device"]["curve"]["at"] = data["device"]["curve"]["at"][1:]
    assert "Memory over a step" not in titles(page_text(data))


def test_a_run_shows_the_losses_of_its_metrics(tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps(documents()["run"]))
    without = Tags(page_of_file(run))
    lines = [{"step": step, "loss": 3 - step / 10, "eval_loss": 2.0 if step == 4 else None} for step in range(9)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    shown = Tags(page_of_file(run))
    assert not without.of("path")
    assert [one["class"] for one in shown.of("path")] == ["line-training", "line-held-out"]
    assert len(shown.of("circle")) == 9 + 1


CHARTS = [("memory", "estimate"), ("memory", "sweep"), ("over_a_step", "rehearsal"), ("streams", "rehearsal")]


@pytest.mark.parametrize(("chart", "kind"), CHARTS)
def test_a_picture_is_one_file_with_title_and_legend(chart: Any, kind: str, tmp_path: Path) -> None:
    write_picture(tmp_path / "a.svg", chart, hostile(documents()[kind]), f"{HOSTILE}\x1b")
    text = (tmp_path / "a.svg").read_text()
    tree = ElementTree.fromstring(text)
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    tags = [part.tag.rpartition("}")[2] for part in tree.iter()]
    assert not {"script", "img", "image", "use", "a"} & set(tags)
    # Viewers other than browsers know no variables of CSS. The background is the first shape.
    assert "var(" not in text
    assert next(part for part in tree if part.tag.endswith("rect")).get("class") == "paper"
    words = [part.text or "" for part in tree.iter()]
    assert HOSTILE[:20] in next(word for word in words if word.startswith("</script>"))
    assert {"kernels" if chart == "streams" else "optimizer states"} <= set(words)


@pytest.mark.parametrize(
    "losses", [{"training": [(0, 2.5)]}, {"training": [(1, -1e-9), (2, 1e9)], "held-out": [(2, 1e-30)]}]
)
def test_losses_of_any_size_are_drawn(losses: Any) -> None:
    lines = Tags(page_text({**documents()["run"], "losses": losses})).of("path")
    numbers = re.findall(r"[-\d.]+", next(one["d"] for one in lines if one["class"] == "line-training"))
    assert len(numbers) == 2 * len(losses["training"])
    assert all(0 <= float(number) <= 1000 for number in numbers)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="there is nothing to draw"):
        write_picture(tmp_path / "a.svg", "streams", {**documents()["rehearsal"], "time": None}, "A step")
    assert not (tmp_path / "a.svg").exists()
