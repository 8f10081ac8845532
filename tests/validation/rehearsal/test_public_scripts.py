"""What tests/validation/results/scripts.json says holds together, and its page says the same."""

from __future__ import annotations

import json
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.rehearsal.public_scripts import WRITTEN, by_hand

ROWS: list[dict[str, Any]] = json.loads(WRITTEN.read_text(encoding="utf-8"))


def test_counts_by_hand_are_within_two_percent() -> None:
    counted = [row for row in ROWS if "by_hand" in row]
    assert len(counted) >= 20
    for row in counted:
        assert by_hand(row["by_hand"], row["steady_bytes"]) == row["by_hand"]
        assert abs(row["by_hand"]["off"]) <= 0.02, row["name"]


def test_every_row_is_rehearsed_within_two_gibibytes_or_refused_with_its_cause() -> None:
    for row in ROWS:
        assert row["resident_bytes"] <= 2 * 2**30, row["name"]
        if row["outcome"] == "refused":
            assert row["line"].startswith("zerokit: error: ")
            assert row["cause"]
        else:
            assert row["peak_bytes"] >= row["steady_bytes"] > 0, row["name"]


def test_the_page_counts_the_rows() -> None:
    page = " ".join(
        (REPOSITORY / "tests" / "validation" / "records" / "rehearsal-accuracy.md").read_text(encoding="utf-8").split()
    )
    rehearsed = sum(row["outcome"] == "rehearsed" for row in ROWS)
    counted = sum("by_hand" in row for row in ROWS)
    assert f"{len(ROWS)} rows, {rehearsed} rehearsed" in page
    assert f"{counted} of them counted by hand" in page
