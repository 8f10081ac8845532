"""The record of :mod:`tests.validation.generation.torture`."""

from __future__ import annotations

import json

from tests.validation.generation.torture import MODES, NUM_KILLS, RECORD, SLOW_RANK


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


def test_a_fault_is_one_line_and_nothing_is_lost() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))["faults"]
    assert {*found} == {*MODES}
    messages = {
        "exists": "exists.jsonl: the file exists",
        "truncated": "--model: ",
        "pickle": "--model: ",
        "disguised": "--model: ",
        "full": "disk/out.jsonl: cannot be written: No space left on device",
    }
    for row in found.values():
        for name, message in messages.items():
            assert row[name]["code"].startswith(f"2 {message}"), row[name]
            assert "\n" not in row[name]["code"]
            assert row[name]["same"]
        assert row["exists, left"] == "mine"
        assert row["executed"] is False
        assert row["full, kept"] > 0
        assert (row["full, continued"]["code"], row["full, equal"]) == (0, True)
        assert row["killed"]["code"] not in (0, 2)
        assert row["killed"]["kept"] >= 4
        assert row["killed"]["equal"]
