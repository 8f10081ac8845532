"""Points drawn at random; `python -m tests.validation.memory.against_random` rehearses them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.validation.memory.against_random import (
    FAMILIES,
    PAGE,
    RECORD,
    ROWS_PAGE,
    SEED,
    drawn,
    row_of,
    summary,
)
from tests.validation.memory.rehearsed import Point
from zerokit.memory import estimate
from zerokit.memory.traits import all_traits

DRAWS = json.loads(RECORD.read_text(encoding="utf-8"))["draws"]
ROWS = [
    pair
    for seed, draw in DRAWS.items()
    for pair in zip(drawn(int(seed), len(draw["rows"])), draw["rows"], strict=True)
]


def test_a_seed_draws_the_same_points_however_many() -> None:
    assert list(drawn(SEED, 10)) == list(drawn(SEED, 200))[:10]
    assert list(drawn(SEED, 10)) != list(drawn(SEED + 1, 10))


def test_every_text_family_and_setting_is_drawn() -> None:
    points = list(drawn(SEED, 200))
    assert {point.training_run().model.model_type for point in points} == set(FAMILIES)  # type: ignore[union-attr]
    assert {name for name, traits in all_traits().items() if traits.checked} <= set(FAMILIES)
    assert {point.zero["stage"] for point in points} == {0, 1, 2, 3}
    assert {tuple(point.zero) for point in points} >= {("stage", "offload_optimizer", "offload_param")}
    assert {point.checkpointing for point in points} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(("point", "row"), ROWS, ids=lambda one: getattr(one, "name", ""))
def test_the_record_is_of_today_s_points_and_estimates(point: object, row: dict[str, object]) -> None:
    assert Point(**row["point"]) == point  # type: ignore[arg-type]
    told = estimate(replace(point.training_run(), rank=0))  # type: ignore[attr-defined]
    today = row_of(point, told, row["rehearsed"])  # type: ignore[arg-type]
    # A field that a point has since then is not in a row of before: the points are compared above.
    assert {**row, "point": None} == json.loads(json.dumps({**today, "point": None}))


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
