"""The record of :mod:`tests.validation.generation.torture`."""

from __future__ import annotations

import json

from tests.validation.generation.torture import NUM_KILLS, RECORD, SLOW_RANK


def test_each_prompt_is_answered_once_in_order() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    cases = found["cases"]
    assert {(case["ranks"], "sharded" in case["name"]) for case in cases} == {
        (2, False),
        (2, True),
        (3, False),
        (3, True),
    }
    for case in cases:
        assert case["complete"], case
        assert case["same"], case
        assert case.get("equal", case["name"] == "streamed"), case
        assert case["code"] == case["failed"] == case["name"].startswith("bad"), case
        if case["name"] == "slow":
            assert case["prompts_of_ranks"][SLOW_RANK] <= sum(case["prompts_of_ranks"]) / len(case["prompts_of_ranks"])
    *runs, end = found["kills"]
    assert end == {"complete": True, "equal": True, "left": False}
    assert [bool(run["killed"]) for run in runs] == [True] * NUM_KILLS + [False]
    assert {run["ranks"] for run in runs} == {1, 2, 3}
