"""The names of phases and categories, and who else has codes for them."""

from __future__ import annotations

import pytest

from zerokit.rehearsal import library
from zerokit.rehearsal.recording import CATEGORY_CODES
from zerokit.reporting.categories import CATEGORIES, LOOKS, category_words
from zerokit.reporting.phases import PHASES, RUN_PHASES, phase_words

pytestmark = pytest.mark.torch


def test_each_category_has_a_look_of_its_own() -> None:
    assert set(LOOKS) == set(CATEGORIES)
    assert len({look.colour for look in LOOKS.values()}) == len({look.hatch for look in LOOKS.values()}) == 6
    assert category_words("optimizer_states") == "optimizer states"


def test_the_codes_of_a_recording_have_these_names() -> None:
    assert sorted(CATEGORY_CODES) == sorted(CATEGORIES)
    assert tuple(code.name.lower() for code in library.Category) == CATEGORY_CODES
    assert tuple(code.name.lower() for code in library.Phase) == RUN_PHASES


def test_an_estimate_and_a_rehearsal_speak_of_the_same_phases() -> None:
    assert set(RUN_PHASES) - {"between"} == set(PHASES) - {"always", "generation"}
    assert phase_words("step") == "optimizer step"
    assert phase_words("always") == "between steps"
