"""The record of eight ranks at published sizes, and a short run of each kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rehearsal.commands import rehearse
from tests.validation.rehearsal.large_roles import ALL, GROWTH, NUM_GPUS, SCRIPT, WRITTEN, growth_off
from tests.validation.rehearsal.public_scripts import counted

pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize("kind", ["sequence", "tensor", "expert"])
def test_both_roles_of_eight_ranks_are_told(kind: str, tmp_path: Path) -> None:
    words = ["--num-gpus", NUM_GPUS, "--no-advise", "--format", "json", SCRIPT, kind]
    report = rehearse(*words, "--tokens", 64, "--layers", 1, cwd=tmp_path, forked=True).report
    roles = {role["role"]: (role["ranks"], role["rehearsed"]) for role in report["roles"]}
    assert roles == {f"{kind} rank 0 of 8": ([0], 0), f"{kind} ranks 1 to 7 of 8": ([1, 2, 3, 4, 5, 6, 7], 7)}


def test_what_was_written_down_agrees_with_counts_by_hand() -> None:
    """`python -m tests.validation.rehearsal.large_roles` makes the record."""
    written = json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert [run["name"] for run in written["runs"]] == [run.name for run in ALL]
    for run, found in zip(ALL, written["runs"], strict=True):
        expected = counted(run.steady, phi=counted(run.parameters))
        assert [role["ranks"] for role in found["roles"]] == [[0], [1, 2, 3, 4, 5, 6, 7]]
        assert all(role["steady_bytes"] == pytest.approx(expected, rel=0.002) for role in found["roles"])
        assert found["resident_bytes"] <= 2 * 2**30
    growth = written["growth_of_the_sequences_peak_by_a_block"]
    assert growth == {"by_hand": GROWTH, "off": growth_off(written["runs"])}
    assert abs(growth["off"]) < 0.001
