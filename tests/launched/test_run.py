"""A run of one rank: what ends it, in which words, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.launched.one_rank import OneRank, make_folder, one_process


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """Where all runs of this file are made."""
    with one_process() as pool:
        yield pool


@pytest.fixture
def here(process: ProcessPoolExecutor, tmp_path: Path) -> OneRank:
    """A folder with all that a run needs."""
    make_folder(tmp_path)
    return OneRank(tmp_path, process)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("steps", "what"),
    [("5", "the loss is nan at step 2"), ("1", "the held-out loss is nan after step 1")],
)
def test_a_diverged_run_ends_at_the_step_and_replaces_no_model(steps: str, what: str, here: OneRank) -> None:
    assert here.train().error is None
    before = contents(here.folder / "out")
    wild = ("--training.learning_rate", "1e10", "--training.max_steps", steps)
    diverged = here.train(*wild, "--training.save_strategy", "'no'", force=True)
    assert diverged.error is not None
    assert diverged.error.startswith(f"1 out: the run has diverged: {what}. No model was replaced. Lower ")
    assert "(1e+10)" in diverged.error
    after = contents(here.folder / "out")
    assert {name: after[name] for name in before if name != "metrics.jsonl"} == {
        name: data for name, data in before.items() if name != "metrics.jsonl"
    }


@contextmanager
def weight_lost() -> Iterator[None]:
    """The last step leaves a weight that is no number, which no loss has seen."""
    from transformers import Trainer

    original = Trainer._finalize_training

    def finalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.model.model.norm.weight.data[3] = float("-inf")
        return original(self, *args, **kwargs)

    with patch.object(Trainer, "_finalize_training", finalize):
        yield


def test_weights_that_are_no_numbers_are_not_saved(here: OneRank) -> None:
    lost = here.train("--training.save_strategy", "'no'", "--data.eval_fraction", "0", fault=weight_lost)
    assert lost.error is not None
    assert lost.error.startswith("1 out: the run has diverged: weights are no longer numbers after step 1.")
    assert contents(here.folder / "out").keys() == {"metrics.jsonl"}
