"""Devices that are not the rank's own: absent ones fail as on the cluster, another rank's are named."""

from __future__ import annotations

from pathlib import Path

from tests.rehearsal.commands import SCRIPTS, rehearse

_OPTIONS = ("--num-gpus", 16, "--no-advise", "--format", "json", "--steps", 1)


def test_a_gpu_that_the_node_does_not_have_fails_as_on_the_cluster(tmp_path: Path) -> None:
    outcome = rehearse(*_OPTIONS, SCRIPTS / "broken_device.py", cwd=tmp_path, forked=True)
    assert outcome.code == 2
    assert "CUDA error: invalid device ordinal (cuda:15 of 8 devices" in outcome.err
    # Rank 0 takes no harm from the mistake.
    # It holds a tensor, as a script that only generates does.
    assert rehearse(*_OPTIONS, "--rank", 0, SCRIPTS / "broken_device.py", cwd=tmp_path, forked=True).code == 0


def test_a_gpu_that_is_another_ranks_is_named_with_its_line(tmp_path: Path) -> None:
    (warning,) = rehearse(*_OPTIONS, SCRIPTS / "one_device_for_all.py", cwd=tmp_path, forked=True).report[
        "warnings"
    ]
    assert "one_device_for_all.py:9" in warning
    assert "rank 15 uses cuda:0, the GPU of another rank, 1 times" in warning
    assert "its own, cuda:7" in warning
