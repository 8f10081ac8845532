"""The accuracy page shows the recorded results."""

from __future__ import annotations

import pytest

from tools import accuracy

MOST_WORDS = 900


def test_the_page_is_the_rendered_template() -> None:
    text = accuracy.PAGE.read_text(encoding="utf-8")
    assert text == accuracy.rendered(), "run python -m tools.accuracy"
    assert len(text.split()) <= MOST_WORDS


def test_known_scripts_are_within_one_percent() -> None:
    assert accuracy.figures()["peaks_known"]["worst"] <= 0.01


def test_error_figures_are_of_sizes() -> None:
    found = accuracy._error_figures([-0.3, 0.1, 0.2])
    assert found == {"count": 3, "median": pytest.approx(0.2), "p90": 0.3, "worst": 0.3, "beyond_a_quarter": 1}
