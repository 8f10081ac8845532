"""CUDA graphs: what they hold, counted by hand, and steps that replays make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse

pytestmark = pytest.mark.rehearsal


def _run(what: str, *words: object, cwd: Path, **variables: str) -> Rehearsed:
    given = ("--format", "json", "--num-gpus", 1, "--gpu", "H100", *words, SCRIPTS / "cuda_graphs.py", what)
    return rehearse(*given, cwd=cwd, forked=True, variables=variables)


def test_a_graph_keeps_its_pool_until_it_is_gone(tmp_path: Path) -> None:
    done = _run("memory", cwd=tmp_path)
    assert done.code in (0, 1), done.err[-3000:]
    said = [line for line in done.err.splitlines() if line]
    # MiB allocated and reserved: matrices of 4, in segments of 20. A graph's pool is not the default one.
    for line in (
        "start 4 20",
        "captured 8 40",  # of three matrices in turn the last is left, and two places
        "beside 16 40",  # from the default pool, though the graph's has room
        "replayed 16 40",
        "shared 20 40",  # in the place that the first graph left
        "own 24 60",
        "released 4 60",  # the graphs are there
        "one is left 4 40",
        "none is left 4 20",
        "Called CUDAGraph::replay without a preceding successful capture.",
    ):
        assert line in said, (line, said)


def test_a_replay_with_an_optimizer_in_it_is_a_step(tmp_path: Path) -> None:
    done = _run("train", "--time", cwd=tmp_path)
    assert done.report["steps"] == 3
    assert "replayed 1" in done.err
    assert "replayed 2" not in done.err
    second, third = (step["seconds"] for step in done.report["time"]["steps"][1:])
    assert third < second  # which has the capture in it, too
    flops = [step["flops"] for step in done.report["per_step"]]
    assert flops[2] == 2 * 2 * 1024**3


def test_graphed_callables_are_trained(tmp_path: Path) -> None:
    done = _run("callables", cwd=tmp_path)
    assert done.report["steps"] == 2


def test_streams_of_a_graph_run_beside_each_other_where_launches_block(tmp_path: Path) -> None:
    milliseconds = []
    for variables in ({}, {"CUDA_LAUNCH_BLOCKING": "1"}):
        said = _run("streams", "--time", cwd=tmp_path, **variables).err
        (found,) = re.findall(r"^replay of .* ([\d.]+)$", said, re.MULTILINE)
        milliseconds.append(float(found))
    assert milliseconds[1] == pytest.approx(milliseconds[0], rel=0.01)
