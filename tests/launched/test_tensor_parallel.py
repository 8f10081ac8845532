"""Runs on groups of ranks that divide layers train, save and resume like one process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny import launch
from tests.validation.parallelism.runs import make_start, read, recipe_of, train
from tests.validation.parallelism.tensor_runs import differences
from zerokit.checkpoint.export import export
from zerokit.checkpoint.reshard import reshard
from zerokit.checkpoint.verify import verify
from zerokit.errors import CheckpointError

pytestmark = [pytest.mark.torch, pytest.mark.distributed]
RATE = {"learning_rate": 0.1}
"""At half a unit, rounding errors grow a hundredfold in six steps."""
SAVES = {"save_strategy": "steps", "save_steps": 3, **RATE}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    make_start(folder)
    return folder


@pytest.fixture(scope="module")
def one(start: Path):
    return train(recipe_of(start, start / "one", split=(4, 3), stage=1, training=RATE), ranks=1)


@pytest.fixture(scope="module")
def group(start: Path) -> Path:
    """The output folder of a run on two ranks."""
    train(recipe_of(start, start / "group", tensor=2, split=(4, 3), training=SAVES), ranks=2)
    return start / "group" / "out"


def test_two_ranks_train_like_one(group: Path, one) -> None:
    found = read(group)
    assert found.engine[:2] == ["DeepSpeedEngine", 3]
    assert found.tokens == one.tokens
    assert max(differences(found, one).values()) < 1e-5, differences(found, one)


def test_two_groups_train_like_one_process_with_the_loss_in_chunks(start: Path, one) -> None:
    recipe = recipe_of(start, start / "groups", tensor=2, split=(2, 3), stage=1, training=RATE)
    found = train(recipe, ranks=4, chunks=True)
    assert "the loss is computed" in found.said
    assert found.engine[:2] == ["DeepSpeedEngine", 1]
    assert "model states per rank: parameters" in found.said
    assert found.tokens == one.tokens
    assert max(differences(found, one).values()) < 1e-5, differences(found, one)


def test_a_checkpoint_is_exported_as_deepspeed_gathers_it(start: Path, group: Path, tmp_path: Path) -> None:
    train(recipe_of(start, tmp_path / "stage-1", tensor=2, split=(4, 3), stage=1, training=SAVES), ranks=2)
    for out in (group, tmp_path / "stage-1" / "out"):
        saved = out / "checkpoint-3"
        verify(saved)
        gathered = load_file(saved / "model.safetensors")
        states = tmp_path / out.parent.name / "states"
        shutil.copytree(saved, states, ignore=shutil.ignore_patterns("model.safetensors", "SHA256SUMS"))
        folders = [states]
        if out == group:
            with pytest.raises(CheckpointError, match="in tensor-parallel parts"):
                reshard(states, states.with_name("resharded"), num_ranks=4, verify=False)
        else:
            folders.append(states.with_name("resharded"))
            reshard(states, folders[1], num_ranks=4, verify=False)
        for folder in folders:
            export(folder, folder.with_name(f"{folder.name}-exported"))
            (file,) = folder.with_name(f"{folder.name}-exported").glob("*.safetensors")
            exported = load_file(file)
            assert exported.keys() == gathered.keys()
            assert all(torch.equal(exported[each], gathered[each]) for each in gathered), folder


def test_a_run_resumes_on_groups_of_the_same_size_only(start: Path, group: Path, tmp_path: Path) -> None:
    expected = read(group)
    shutil.copytree(group / "checkpoint-3", tmp_path / "out" / "checkpoint-3")
    settings = {"split": (4, 3), "training": SAVES}
    other = recipe_of(start, tmp_path, **settings | {"split": (2, 3)})
    refused = launch(["launch/train.py", "--recipe", other, "--resume", "auto"], ranks=2, launcher="none")
    assert refused.returncode == 2
    assert "tensor_parallel" in refused.stderr
    assert "Traceback" not in refused.stderr
    found = train(recipe_of(start, tmp_path, tensor=2, **settings), "--resume", "auto", "--force", ranks=2)
    assert all(torch.equal(found.weights[name], expected.weights[name]) for name in expected.weights)
