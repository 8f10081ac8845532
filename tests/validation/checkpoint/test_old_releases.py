"""What the page says of earlier releases of DeepSpeed is what was found."""

from __future__ import annotations

import json

from tests.launched.checkpoint_runs import RUNS
from tests.validation.checkpoint.old_releases import PAGE, RELEASES, WRITTEN, with_table

REFUSED = {("0.18.9", "tensor-parallel"): "does not describe how 2 tensor-parallel ranks have divided"}
"""What zerokit cannot put together."""


def test_the_page_says_what_was_found_and_no_export_was_wrong() -> None:
    found = json.loads(WRITTEN.read_text(encoding="utf-8"))
    rows, page = found["releases"], PAGE.read_text(encoding="utf-8")
    assert with_table(page, rows) == page
    assert [one["release"] for one in rows] == list(RELEASES)
    assert found["runs"] == list(RUNS)
    wrong = {(one["release"], name): said for one in rows for name, said in one["wrong"].items()}
    assert wrong.keys() == REFUSED.keys()
    assert all(REFUSED[key] in said[0] for key, said in wrong.items())
    for one in rows:
        assert sorted([*one["exported"], *one["wrong"], *one["not_saved"]]) == sorted(RUNS)
