"""``training.on_spike: skip``: a step that is left out might never have been."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.launched.left_out import broken
from tests.launched.one_rank import OneRank, make_folder, one_process
from tests.tiny import REPOSITORY, launch

ROWS = 48
BAD = range(20, 24)
"""The second micro batch of the third step."""
STEPS = (
    *("--training.max_steps", "6", "--training.logging_steps", "1", "--training.save_strategy", "'no'"),
    *("--training.learning_rate", "0.01", "--training.train_sampling_strategy", "sequential"),
    *("--training.on_spike", "skip", "--data.eval_fraction", "0", "--task.padding_free", "false"),
)
ONE = ("--training.per_device_train_batch_size", "4", "--training.gradient_accumulation_steps", "2")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneRank]:
    """Data with four bad examples, and the same without the step that they are in."""
    folder = tmp_path_factory.mktemp("skip")
    make_folder(folder)
    rows = [
        json.dumps({"prompt": f"What is {n}?", "completion": f"{'Bad' if n in BAD else 'The'} number {n}."})
        for n in range(ROWS)
    ]
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "without.jsonl").write_text("\n".join(rows[:16] + rows[24:]) + "\n")
    with one_process() as pool:
        yield OneRank(folder, pool)


def logged(folder: Path) -> list[tuple[float, float]]:
    """Loss and learning rate of each step."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(one["loss"], one["learning_rate"]) for one in entries if "learning_rate" in one]


@contextmanager
def with_fp16(factor: str) -> Iterator[None]:
    from deepspeed.accelerator import get_accelerator

    with patch.object(get_accelerator(), "is_fp16_supported", return_value=True), broken(factor, "Bad"):
        yield


OFFLOADED = ("--deepspeed.zero_optimization.offload_optimizer.device", "cpu")


CELLS = [(0, ()), (1, ("--precision", "fp16")), (2, OFFLOADED), (3, ()), (3, ("--precision", "bf16"))]


@pytest.mark.parametrize(("stage", "words"), CELLS)
def test_a_step_that_is_left_out_might_never_have_been(
    stage: int, words: tuple[str, ...], here: OneRank
) -> None:
    recipe = (*STEPS, *ONE, *words, "--deepspeed.zero_optimization.stage", str(stage))
    left_out = here.train(*recipe, force=True, fault=partial(with_fp16, "nan"))
    assert left_out.error is None, left_out
    places = ", ".join(f"data.jsonl:{row + 1}" for row in BAD)
    said = (
        f"the loss is nan at step 3: rank 0 with {places}. The step is left out (1 in a row; 6 end the run)"
    )
    assert said in left_out.said
    found = logged(here.folder / "out")
    without = here.train(*recipe, "--data.train", "without.jsonl", force=True, fault=partial(with_fp16, "1"))
    assert without.error is None, without
    assert_same_steps(found, logged(here.folder / "out"))


def assert_same_steps(found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    """All but the third, which the second run had not, with equal losses and learning rates."""
    for step, its in zip(found[:2] + found[3:], expected[:5], strict=True):
        assert step == pytest.approx(its, rel=1e-6)
    assert found[3][0] < found[0][0]


def test_all_ranks_leave_out_what_one_has_seen(here: OneRank) -> None:
    runs = []
    for factor, data in (("nan", "data.jsonl"), ("1", "without.jsonl")):
        out = here.folder / f"two-{factor}"
        places = ("--training.output_dir", out, "--data.train", data)
        words = (*STEPS, "--training.per_device_train_batch_size", "4", *places)
        script = REPOSITORY / "tests" / "launched" / "left_out.py"
        result = launch(
            [script, factor, "Bad", "--", "--recipe", "recipe.yaml", *words],
            ranks=2,
            launcher="none",
            cwd=here.folder,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        assert ("the loss is nan at step 3: rank 1 with data.jsonl:21" in result.stderr) is (factor == "nan")
        runs.append(logged(out))
    assert_same_steps(*runs)
