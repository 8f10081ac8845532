"""The record of :mod:`tests.validation.generation.matrix`."""

from __future__ import annotations

import json
from itertools import product

from tests.validation.generation.matrix import CASES, FAMILIES, MODES, RANKS, RECORD

REFUSED = "2 --mode: {mode} is not possible: "


def test_each_mode_has_the_completions_of_one_process() -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    found = [(row["mode"], row["ranks"], row["family"]) for row in rows]
    assert found == list(product(MODES, RANKS, FAMILIES))
    for row in rows:
        for case in CASES:
            is_refused = row[case].startswith(REFUSED.format(mode=row["mode"]))
            assert row[case] == "equal" or (is_refused and row["mode"] in ("tensor", "sharded")), row
