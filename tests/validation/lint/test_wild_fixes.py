"""Fixes and hints never stop what started: a sample of public files, and every rule's examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from zerokit.lint.run import all_rules
from zerokit.resolving.auto_word import TARGETS, Target
from zerokit.resolving.run import Run

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from tests.combinations import sample
from tests.validation.lint.test_wild import FOLDER, needs_folder
from tests.validation.lint.wild_fixes import WRITTEN, Tally, read_file, try_text

pytestmark = pytest.mark.torch

SAMPLE = ("143", "178", "377")
"""Files in which a fix or a hint once stopped what started: an old bfloat16, ZeRO as a switch, and a decay of
weights in the wrong place."""
EXAMPLES = [rule for rule in all_rules().values() if rule.check_launch is None]
"""`test_accelerate_launch.py` has those of the files of ``accelerate launch``."""


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", sample(TARGETS, 1))
def test_no_fix_and_no_hint_of_an_example_stops_what_started(target: Target) -> None:
    tally = Tally()
    for rule in EXAMPLES:
        text = rule.bad if isinstance(rule.bad, str) else json.dumps(rule.bad, indent=2)
        try_text(text, rule.id, Run.of(**{**rule.facts, "target": target}), tally)
    assert tally.failures == []
    assert tally.hints > 300
    assert tally.fixed > 30


@needs_folder
@pytest.mark.parametrize("name", SAMPLE)
def test_no_fix_and_no_hint_of_a_public_file_stops_what_started(name: str) -> None:
    (row,) = [one for one in json.loads((FOLDER / "index.json").read_text()) if one["id"] == name]
    for target in TARGETS:
        tally = Tally()
        try_text(read_file(FOLDER / row["file"]).text or "", name, Run.of(target=target), tally)
        assert tally.failures == []


def test_no_public_file_failed_when_all_were_tried() -> None:
    figures: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8"))["targets"]
    assert {target: row["failures"] for target, row in figures.items()} == dict.fromkeys(TARGETS, 0)
