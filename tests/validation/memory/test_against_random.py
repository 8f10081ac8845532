"""Points drawn at random; `python -m tests.validation.memory.against_random` rehearses them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.combinations import ALL
from tests.validation.memory.against_random import FAMILIES, PAGE, RECORD, ROWS_PAGE, SEED, drawn, row_of, summary
from tests.validation.memory.rehearsed import Point
from zerokit.memory import estimate
from zerokit.memory.traits import all_traits

DRAWS = json.loads(RECORD.read_text(encoding="utf-8"))["draws"]


def test_a_seed_draws_the_same_points_however_many() -> None:
    assert list(drawn(SEED, 10)) == list(drawn(SEED, 40))[:10]
    assert list(drawn(SEED, 10)) != list(drawn(SEED + 1, 10))


def test_every_text_family_and_setting_is_drawn() -> None:
    points = list(drawn(SEED, 200))
    assert {point.training_run().model.model_type for point in points} == set(FAMILIES)  # type: ignore[union-attr]
    assert {name for name, traits in all_traits().items() if traits.checked} <= set(FAMILIES)
    assert {point.zero["stage"] for point in points} == {0, 1, 2, 3}
    assert {tuple(point.zero) for point in points} >= {("stage", "offload_optimizer", "offload_param")}
    assert {point.checkpointing for point in points} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("seed", DRAWS)
def test_the_record_is_of_today_s_points_and_estimates(seed: str) -> None:
    """Of every third point, or of all with ZEROKIT_ALL_COMBINATIONS=1; points are drawn here, not in every worker."""
    rows = DRAWS[seed]["rows"]
    stale = []
    for number, (point, row) in enumerate(zip(drawn(int(seed), len(rows)), rows, strict=True)):
        assert Point(**row["point"]) == point
        if ALL or number % 3 == 0:
            told = estimate(replace(point.training_run(), rank=0))
            today = json.loads(json.dumps(row_of(point, told, row["rehearsed"])))
            # A field that a point has since then is not in a row of before: the points are compared above.
            if {**row, "point": None} != {**today, "point": None}:
                stale.append((point.name, row, today))
    assert stale == []


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_record_holds_what_the_page_says(draw: dict[str, Any]) -> None:
    found = summary(draw["rows"])
    assert draw["summary"] == pytest.approx(found)
    assert f"{found['points']} points" in PAGE.read_text(encoding="utf-8")
    assert f"{found['points']} points" in ROWS_PAGE.read_text(encoding="utf-8")
    assert found["median"] <= 0.02
    assert found["worst_above"] <= 0.08
    assert found["worst_below"] >= -0.03
    assert found["unchecked_held"] == found["unchecked"]
