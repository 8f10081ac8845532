"""Ranks that are rehearsed beside each other wait for each other in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY
from zerokit.rehearsal.native.together import Played
from zerokit.rehearsal.ranks.roles import Axis, Roles, find_roles
from zerokit.rehearsal.report.combination import matched
from zerokit.rehearsal.timing.rank_time import Meetings


@pytest.mark.rehearsal
def test_ranks_wait_for_each_other_as_in_an_independent_simulation() -> None:
    command = [sys.executable, "-m", "tests.validation.rehearsal.together_programs", "200", "3"]
    tried, waited, stuck = map(int, processes.checked(command, cwd=REPOSITORY).splitlines()[-1].split())
    assert tried >= 40
    assert waited >= 15
    assert stuck >= 1


@pytest.mark.rehearsal
def test_the_bubble_of_a_pipeline_is_in_its_step(tmp_path: Path) -> None:
    """Of p equal stages with m micro-batches, each stage waits (p - 1) / m of what it computes."""
    options = ["--num-gpus", 4, "--gpu", "H100", "--time", "--steps", 2, "--scan", 0, "--no-advise"]
    done = rehearse(
        *options, "--format", "json", SCRIPTS / "equal_stages.py", 4, 8, cwd=tmp_path, forked=True
    )
    time, parts = done.report["time"], done.report["time"]["breakdown"]
    waits = parts["other_ranks"] + parts["communication"]
    # A little more: what the stages send each other, and the clipping of gradients.
    assert 3 / 8 < waits / parts["compute"] < 3 / 8 + 0.03
    assert sum(parts.values()) == pytest.approx(time["step_seconds"])
    assert time["critical_path"][0]["name"] == "aten::mm"
    assert sum("clocks that the script sees" in line for line in done.report["warnings"]) == 1


def test_what_ranks_do_together_has_one_number_on_all_of_them() -> None:
    roles = Roles(("first", "last"), (0, 0, 1, 1), (0, 3))
    first, last = Meetings(), Meetings()
    assert [first.come(("group", "all")), first.come(("pair", "0", "2", "7"))] == [0, 1]
    assert [first.come(("group", "all")), first.come(("group", "alone"))] == [2, 3]
    # Rank 3 hears rank 1, for which rank 0 stands, as rank 3 does for rank 2.
    for meeting in (("pair", "1", "3", "7"), ("group", "all"), ("pair", "3", "1", "7")):
        last.come(meeting)
    numbers, sizes = matched([first.all, last.all], roles)
    assert numbers[0][3] == numbers[1][2] == -1
    assert numbers[0][1] == numbers[1][0]
    assert numbers[0][0] == numbers[1][1] != numbers[0][2]
    assert numbers[0][2] == -1  # the last rank does not come a second time
    assert [sizes[number] for number in numbers[1][:2]] == [2, 2]


def test_a_rank_that_stands_for_both_ends_meets_nobody() -> None:
    roles = find_roles(16, [Axis("pipeline", (tuple(range(16)),))])
    assert len(roles.rehearsed) < 16
    here = next(rank for rank in roles.rehearsed if roles.stands_for(rank + 1) == rank)
    own, other = Meetings(), Meetings()
    own.come(("pair", str(here), str(here + 1), "0"))
    own.come(("pair", str(here + 1), str(here), "0"))
    own.come(("group", "all"))
    other.come(("group", "all"))
    numbers, sizes = matched([own.all, other.all], roles)
    assert numbers[0][:2] == [-1, -1]
    assert sizes[numbers[0][2]] == 2


def test_where_a_host_was_by_itself_is_told_in_the_time_of_all() -> None:
    played = Played(np.zeros(0), np.zeros(0), np.array([[10, 15], [20, 40], [20, 41]]), 0)
    assert played.time_of_host(np.array([3, 10, 12, 20, 30])).tolist() == [3, 15, 17, 41, 51]
