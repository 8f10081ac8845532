"""The names of phases and categories, in estimates and in recordings."""

from __future__ import annotations

import pytest

from zerokit.rehearsal.recording import CATEGORY_CODES
from zerokit.reporting.categories import CATEGORIES, COLOURS, category_words
from zerokit.reporting.phases import PHASES, RUN_PHASES, phase_words

pytestmark = pytest.mark.torch


def test_each_category_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(CATEGORIES)
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert category_words("optimizer_states") == "optimizer states"


def test_every_category_has_a_code_in_recordings() -> None:
    assert sorted(CATEGORY_CODES) == sorted(CATEGORIES)
    assert CATEGORY_CODES[0] == "other"  # which is what a block is before anybody says more


def test_an_estimate_and_a_rehearsal_speak_of_the_same_phases() -> None:
    assert set(RUN_PHASES) - {"between"} == set(PHASES) - {"always", "first pass", "generation"}
    assert phase_words("step") == "optimizer step"
    assert phase_words("always") == "between steps"
