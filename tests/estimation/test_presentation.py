from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.estimation.requests import answer, shape
from zerokit.errors import ZerokitError
from zerokit.estimation import verdict
from zerokit.estimation.as_json import as_data
from zerokit.estimation.explain import explanation
from zerokit.estimation.plot import write_plot
from zerokit.memory import Estimate, Lora, by_category
from zerokit.reporting.categories import CATEGORIES, category_words
from zerokit.reporting.phases import EARLY_PHASES
from zerokit.units import GIB

RUNS: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 1, "precision": "fp16", "optimizer": "fused_adam"},
    {"zero_stage": 1, "gradient_checkpointing": True, "optimizer": "adamw"},
    {"zero_stage": 2, "gradient_accumulation_steps": 4},
    {"zero_stage": 2, "offload_optimizer": "cpu", "gradient_accumulation_steps": 4},
    {"zero_stage": 3, "precision": "fp16"},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    {"zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"},
    {"zero_stage": 3, "lora": Lora(8)},
    {"zero_stage": 3, "model": 7 * 10**9},
    {"zero_stage": 3, "model": shape("deepseek-v2"), "offload_optimizer": "cpu"},
]


@pytest.fixture(params=RUNS, ids=str)
def one(request: pytest.FixtureRequest) -> Estimate:
    return answer(**request.param)


def test_categories_add_up_to_the_peaks(one: Estimate) -> None:
    assert sum(by_category(one.device.terms_at_peak).values()) == one.device.peak_bytes
    assert sum(by_category(one.host.terms_at_peak).values()) == one.host.peak_bytes


def test_components_of_the_json_make_the_peak(one: Estimate) -> None:
    device = as_data(one)["device"]
    phase = device["peak_phase"]
    phases = {phase} if phase in EARLY_PHASES else {phase, "always"}
    held = [term["bytes"] for term in device["components"] if term["phase"] in phases]
    assert sum(held) == device["peak_bytes"]
    steady = [term["bytes"] for term in device["components"] if term["phase"] == "always"]
    assert sum(steady) == device["steady_bytes"]


def test_states_are_written_as_in_the_paper() -> None:
    symbols = {
        stage: " + ".join(line.symbols for line in answer(zero_stage=stage).model_states.each)
        for stage in range(4)
    }
    assert symbols == {
        0: "2Φ + 2Φ + 12Φ",
        1: "2Φ + 2Φ + 12Φ/N",
        2: "2Φ + 2Φ/N + 12Φ/N",
        3: "2Φ/N + 2Φ/N + 12Φ/N",
    }
    trained = [line.symbols for line in answer(zero_stage=3, lora=Lora(8)).model_states.each]
    assert trained == ["2Φ/N", "2Φₜ/N", "12Φₜ/N"]


def test_model_states_say_where_they_are_offloaded_to() -> None:
    lines = answer(zero_stage=3, offload_optimizer="nvme", offload_param="cpu").model_states.each
    assert [(line.where, line.gpu_bytes) for line in lines] == [("host", 0), ("host", 0), ("NVMe", 0)]
    assert all(line.bytes > 0 for line in lines)


def test_the_explanation_names_every_formula_and_source(one: Estimate) -> None:
    text = "\n".join(explanation(one))
    for term in (*one.terms, *one.overheads):
        assert term.formula in text
        assert term.source in text
    assert f"{one.device.peak_bytes:,}" in text


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib")


def comments(picture: str) -> list[str]:
    return re.findall(r"<!-- (.*?) -->", picture)


@pytest.mark.usefixtures("_matplotlib")
def test_the_plot_has_bars_legend_and_capacity(tmp_path: Path) -> None:
    answers = [answer(zero_stage=stage) for stage in range(4)]
    memory = 16 * GIB
    write_plot(answers, tmp_path / "bytes.svg", memory)
    picture = (tmp_path / "bytes.svg").read_text()
    words = comments(picture)
    for text in ("ZeRO-0", "ZeRO-3", "GPU", "host", "parameters", "optimizer states", "one GPU, 16.00 GiB"):
        assert text in words
    for one in answers:
        assert f"{one.device.peak_bytes / GIB:.1f}" in words
    assert "<pattern" in picture  # the hatching that replaces colours in black and white


@pytest.mark.usefixtures("_matplotlib")
def test_the_same_estimates_give_the_same_svg(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_plot([answer()], tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.usefixtures("_matplotlib")
def test_html_needs_no_other_file(tmp_path: Path) -> None:
    one = answer(model=shape("llama-3.1-8b"))
    write_plot([one], tmp_path / "bytes.html", 80 * GIB)
    page = (tmp_path / "bytes.html").read_text()
    assert "<svg" in page
    assert not re.search(r"<(script|link|img)\b|\bsrc=", page)
    assert "One GPU has 80.00 GiB" in page
    assert "meta-llama/Llama-3.1-8B" in page
    assert all(category_words(category) in page for category in CATEGORIES)


@pytest.mark.usefixtures("_matplotlib")
def test_png(tmp_path: Path) -> None:
    write_plot([answer()], tmp_path / "bytes.png")
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_matplotlib")
def test_too_many_bars_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ZerokitError, match="41 runs are more than a picture can show"):
        write_plot([answer()] * 41, tmp_path / "bytes.png")


def test_the_fit_is_in_the_json() -> None:
    one = answer()
    data = as_data(one, verdict(one, 80 * GIB))
    assert data["fit"]["verdict"] == "fits"
    assert data["fit"]["needed_high_bytes"] == data["device"]["high_bytes"] == one.device_high_bytes
