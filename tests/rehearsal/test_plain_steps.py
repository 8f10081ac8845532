"""Optimizer steps of scripts without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse

pytestmark = pytest.mark.rehearsal

MIB = 2**20
MATRICES = 16 * MIB
WORKSPACE = 32 * MIB
"""cuBLAS's, of which the thread of the backward pass has its own."""
INPUTS = MIB // 2
BLOCK = 512
"""What the smallest tensor takes."""


def _run(way: str, *words: object, iterations: int, cwd: Path) -> Rehearsed:
    given = ("--format", "json", "--num-gpus", 1, "--gpu", "H100", *words, SCRIPTS / "plain_optimizers.py")
    return rehearse(*given, way, iterations, cwd=cwd, forked=True)


@pytest.mark.parametrize(
    ("way", "states"),
    [
        # All gradients are there at its end, and AdamW has two counters of its own.
        ("several", MATRICES + MATRICES // 2 + MATRICES + 2 * BLOCK),
        ("container", MATRICES),  # the gradients
        ("in_backward", BLOCK),  # the loss, as the backward pass has not returned
        ("normalizing", MATRICES),  # the gradients
    ],
)
def test_a_step_is_what_updates_the_parameters_once(way: str, states: int, tmp_path: Path) -> None:
    done = _run(way, iterations=9, cwd=tmp_path)
    report = done.report
    assert report["steps"] == 2
    assert report["run"]["stopped_after_steps"] == 2
    held = [one["steady_bytes"] for one in report["per_step"]]
    assert way != "several" or held[0] == held[1], "a step ends with the last of its optimizers"
    assert way != "container" or report["per_step"][1]["flops"] > 0, "a container and what it holds step once"
    assert max(held) == MATRICES + states + INPUTS + 2 * WORKSPACE


def test_inputs_of_checkpointed_layers_go_as_soon_as_they_were_computed_again(tmp_path: Path) -> None:
    report = _run("checkpointed", iterations=9, cwd=tmp_path).report
    assert report["steps"] == 2
    hidden = 64 * MIB
    # Inputs of four layers and the output of the last; then it is computed again, from a gradient to another.
    held = MATRICES + INPUTS + 2 * WORKSPACE
    assert held + 5 * hidden < report["device"]["peak_bytes"] < held + 7.5 * hidden
