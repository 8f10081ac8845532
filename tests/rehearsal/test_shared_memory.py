"""Tensors over one another's memory, on the virtual device and on the host."""

from __future__ import annotations

from pathlib import Path

from tests.rehearsal.commands import SCRIPTS, rehearse


def test_views_and_host_kernels_use_the_memory_they_should(tmp_path: Path) -> None:
    script = SCRIPTS / "shared_memory.py"
    rehearsed = rehearse("--num-gpus", 2, "--rank", 0, "--no-advise", script, cwd=tmp_path, forked=True)
    assert "all as on the cluster" in rehearsed.out, rehearsed.err[-2000:]
