"""The record of :mod:`tests.validation.generation.matrix`, as far as it has been run."""

from __future__ import annotations

import json

from tests.validation.generation.matrix import CASES, FAMILIES, MODES, RECORD

REFUSED = "2 --mode: {mode} is not possible: "


def test_each_mode_has_the_completions_of_one_process() -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    assert rows
    for row in rows:
        assert row["family"] in FAMILIES
        assert row["mode"] in MODES
        for case in CASES:
            is_refused = row[case].startswith(REFUSED.format(mode=row["mode"]))
            assert row[case] == "equal" or (is_refused and row["mode"] in ("tensor", "sharded")), row
