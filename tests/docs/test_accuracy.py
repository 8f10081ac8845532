"""The figures of accuracy in README and guides are those of the records."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from tests.tiny import REPOSITORY

DOCS = REPOSITORY / "docs"
OWN_RUNS = {1, 2, 19, 20, 21, 35, 208, 210, 219}
"""Rows of published times that are DeepSpeed's own runs."""


def read(record: str) -> Any:
    return json.loads((DOCS / "measured" / record).read_text(encoding="utf-8"))


FIRST_LATER = 300
"""The first row that was looked for after the others were known."""


def is_fsdp(row: dict[str, Any]) -> bool:
    return "FSDP" in str(row["published"]["zero_stage"])


def percent(value: float, digits: int = 0) -> str:
    return f"{abs(value) * 100:.{digits}f} %"


def lacks(page: str, *words: str) -> list[str]:
    """Those that the page does not say."""
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    return [one for one in words if one not in text]


def test_rehearsed_peaks() -> None:
    known, others = [], []
    for row in read("published.json"):
        if row.get("error") is not None:
            of = known if row["name"].startswith(("bf16-", "chat-dpo-")) else others
            of.append(abs(row["error"]))
    assert max(known) <= 0.01
    worst = percent(max(others), 1)
    assert lacks("../README.md", "within 1 % of published ones", f"within {worst} elsewhere") == []
    assert lacks("rehearsal-accuracy.md", "within 1 % if", f"within {worst} elsewhere") == []


def test_estimated_peaks() -> None:
    draws = read("estimate_random.json")["draws"].values()
    worst = max(abs(draw["summary"][side]) for draw in draws for side in ("worst_below", "worst_above"))
    of_kind: dict[str, list[float]] = {}
    for row in read("estimate_published.json"):
        if "error" in row:
            of_kind.setdefault(row["kind"], []).append(row["error"])
    low = f"{percent(min(of_kind['driver']))} too low"
    high = f"{percent(max(of_kind['driver']))} too high"
    allocated = percent(max(map(abs, of_kind["allocated"])), 1)
    random = f"within {percent(worst, 1)} of"
    assert lacks("../README.md", low, f"{random} the rehearsals of random runs") == []
    assert lacks("estimate-accuracy.md", low, high, f"they are within {allocated}") == []
    assert lacks("estimate-accuracy.md", f"{random} rehearsals of random runs") == []


@pytest.mark.parametrize("page", ["../README.md", "rehearse.md", "time-accuracy.md"])
def test_predicted_times(page: str) -> None:
    every = [row for row in read("published_times.json") if row.get("error") is not None]
    rows = [row for row in every if row["row"] < FIRST_LATER]
    errors = [abs(row["error"]) for row in rows]
    later = [row["error"] for row in every if row["row"] >= FIRST_LATER and not is_fsdp(row)]
    far = sum(error > 0.25 for error in errors)
    own = [abs(row["error"]) for row in rows if row["row"] in OWN_RUNS]
    assert (len(own), sum(error <= 0.25 for error in own)) == (9, 6)
    words = [f"gainst {len(rows)} published runs", f"is {percent(statistics.median(errors))}, and {far} "]
    words += ["more than 25 % off", "of nine runs of DeepSpeed itself six are within 25 %"]
    words.append(
        f"Of {len(every) - len(rows)} runs that were looked for later the {len(later)} of DeepSpeed are"
    )
    off = percent(statistics.median(abs(error) for error in later))
    words.append(f"{off} off in the median, {sum(error < 0 for error in later)} of them too fast")
    if page == "../README.md":
        words.append(f"the worst by {percent(max(errors))}")
    assert lacks(page, *words) == []
