"""A pipeline rehearsed by its roles, against real ranks that send to each other; and what was measured so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.validation.rehearsal.role_runs import ALL, QUICK, WRITTEN, RoleRun, compare


@pytest.mark.distributed
def test_every_stage_of_a_pipeline_holds_what_a_real_one_does(tmp_path: Path) -> None:
    rows, _ = compare(QUICK, tmp_path, forked=True)
    assert [row["role"] for row in rows] == ["pipeline stage 0 of 2", "pipeline stage 1 of 2"]
    assert rows[0]["real"] != rows[1]["real"]
    for row in rows:
        assert (row["rehearsed_rank"], row["same_traffic"]) == (row["rank"], True)
        assert row["rehearsed"] == row["real"]


def test_what_was_written_down_is_of_every_run() -> None:
    """`python -m tests.validation.rehearsal.role_runs --write` makes the record."""
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert [run["name"] for run in written["runs"]] == [run.name for run in ALL]
    rows = [row for run in written["runs"] for row in run["ranks"]]
    assert all(row["rehearsed"] == row["real"] for row in rows if row["rank"] == row["rehearsed_rank"])
    assert all(row["same_traffic"] for row in rows)
    assert written["worst_deviation_percent_of_ranks_rehearsed"] == 0
    rows_of = {run["name"]: run["ranks"] for run in written["runs"]}
    stood_for = {run["name"]: max(row["worst_deviation_percent"] for row in run["ranks"]) for run in written["runs"]}
    assert written["worst_deviation_percent_of_ranks_stood_for"] == max(stood_for.values())
    assert all(stood_for[run.name] < 2.5 for run in ALL if run.num_ranks < 8 or run.expandable)
    for run in ALL:
        for row in rows_of[run.name] if run.num_ranks == 8 else []:
            for figure in ("device_peak", "device_steady"):
                assert row["rehearsed"][figure] == pytest.approx(row["real"][figure], **closeness(run))


def closeness(run: RoleRun) -> dict[str, float]:
    """How close the ranks of a role are at their peak and after a step, as words of `pytest.approx`."""
    if run.expandable:  # all blocks are cut to size, so that parts of a tensor are left
        return {"rel": 0.005}
    if run.script == "pipeline.py":  # in each of two blocks, a remainder below 1 MiB
        return {"rel": 0.0, "abs": 2 * 2**20}
    return {"rel": 0.015}
