"""Sequence parallelism on real ranks: a run of one process, and what happens to a group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny import launch
from tests.validation.parallelism.runs import SAMPLE, START, Case, Trained, make_start, recipe_of, run_case, train
from zerokit.checkpoint.export import export

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequence")
    make_start(folder / START)
    return folder


def check(found: Trained, one: Trained, sequence: int) -> None:
    assert found.engine == ["DeepSpeedEngine", 3, sequence]
    assert max(found.difference(one).values()) < 1e-5
    assert found.tokens == one.tokens
    assert one.held_out[-1] < one.held_out[0]  # equal curves of a run that does not train would prove nothing


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_losses_norms_and_weights_are_those_of_one_process(case: Case, folder: Path) -> None:
    one, found = run_case(case, folder)
    check(found, one, case.sequence)
    assert f"{case.sequence} ranks share the tokens of a micro batch" in found.said


def test_a_run_goes_on_with_groups_of_another_size_and_can_be_exported(folder: Path) -> None:
    """Groups of two, then none: as many examples in a step, so twice the accumulation steps before."""
    saves = {"save_strategy": "steps", "save_steps": 3, "dataloader_num_workers": 1}
    recipe = recipe_of(folder / START, folder / "saved", sequence=2, split=(1, 2), training=saves)
    whole = train(recipe, ranks=2)
    out = recipe.parent / "out"
    export(out / "checkpoint-6", folder / "exported")
    (exported,) = (folder / "exported").glob("*.safetensors")
    assert all(torch.equal(each, whole.weights[name]) for name, each in load_file(exported).items())
    at = ("--training.resume_from_checkpoint", str(out / "checkpoint-3"), "--force")
    again = launch(["launch/train.py", "--recipe", recipe, *at, "--parallel.sequence", "1"], ranks=2, launcher="none")
    assert again.returncode == 2
    assert "a step now has 4 examples; the checkpoint's run had 2" in again.stderr
    options = (*at, "--parallel.sequence", "1", "--training.gradient_accumulation_steps", "1")
    assert train(recipe, *options, ranks=2).losses[-3:] == pytest.approx(whole.losses[-3:], abs=1e-5)


def test_a_later_run_of_a_process_has_its_own_groups(folder: Path) -> None:
    recipe = recipe_of(folder / START, folder / "again", split=(1, 2))
    ended = launch(["tests/launched/train_again.py", recipe, "1", "2", "2", "1"], ranks=2, launcher="none")
    assert ended.returncode == 0, ended.stderr[-4000:]
    entries = [(recipe.parent / f"out-{number}" / "metrics.jsonl").read_text().splitlines() for number in range(4)]
    losses = [[found["loss"] for found in map(json.loads, lines) if "loss" in found] for lines in entries]
    assert losses[0] == pytest.approx(losses[3])
    assert losses[1] == pytest.approx(losses[2])
    assert losses[0] != pytest.approx(losses[1])  # of other batches


@pytest.mark.parametrize("kind", ["sequence", "tensor"])
def test_a_rank_of_a_group_that_is_killed_ends_the_run(kind: str, folder: Path) -> None:
    recipe = recipe_of(folder / START, folder / f"killed-{kind}", **{kind: 2})
    ended = launch(
        ["tests/validation/parallelism/train_on_ranks.py", "--recipe", recipe],
        ranks=2,
        launcher="none",
        env={"KILL_RANK": "1"},
    )
    assert ended.returncode not in (0, 2)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("zerokit: error")]
    assert len(errors) <= 1
    assert all("rank 0" in line and "lost another rank" in line for line in errors)


def test_deepspeed_still_doubles_gradients_where_they_are_refused(tmp_path: Path) -> None:
    """Where this fails, DeepSpeed has changed: allow the stage, or all_reduce, by its first fixed release."""
    ended = launch(["tests/launched/sequence_gradients.py", tmp_path / "found.json"], ranks=2, launcher="none")
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == pytest.approx({"1": 2, "2": 2, "3": 1, "3-all-reduced": 2})
