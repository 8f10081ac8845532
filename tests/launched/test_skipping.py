"""``training.on_spike: skip``: a step that is left out might never have been."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.combinations import REST
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


def lines(count: int, bad: range) -> list[str]:
    return [
        json.dumps({"prompt": f"What is {n}?", "completion": f"{'Bad' if n in bad else 'The'} number {n}."})
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneRank]:
    """Data with four bad examples, and the same without the step that they are in."""
    folder = tmp_path_factory.mktemp("skip")
    make_folder(folder)
    rows = lines(ROWS, BAD)
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


CELLS = [
    pytest.param(0, (), marks=REST),
    (1, ("--precision", "fp16")),
    pytest.param(2, OFFLOADED, marks=REST),
    pytest.param(3, (), marks=REST),
    (3, ("--precision", "bf16")),
]


@pytest.mark.parametrize(("stage", "words"), CELLS)
def test_a_step_that_is_left_out_might_never_have_been(stage: int, words: tuple[str, ...], here: OneRank) -> None:
    recipe = (*STEPS, *ONE, *words, "--deepspeed.zero_optimization.stage", str(stage))
    left_out = here.train(*recipe, force=True, fault=partial(with_fp16, "nan"))
    assert left_out.error is None, left_out
    places = ", ".join(f"data.jsonl:{row + 1}" for row in BAD)
    said = f"the loss is nan at step 3: rank 0 with {places}. The step is left out (1 in a row; 6 end the run)"
    assert said in left_out.said
    found = logged(here.folder / "out")
    without = here.train(*recipe, "--data.train", "without.jsonl", force=True, fault=partial(with_fp16, "1"))
    assert without.error is None, without
    assert_all_but(3, found, logged(here.folder / "out"))
    assert found[3][0] < found[0][0]


def assert_all_but(left_out: int, found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    """The second run had not that step; the others have equal losses and learning rates."""
    others = found[: left_out - 1] + found[left_out:]
    for step, its in zip(others, expected[: len(others)], strict=True):
        assert step == pytest.approx(its, rel=1e-6)


def on_two_ranks(here: OneRank, factor: str, data: str, *more: str) -> tuple[str, list[tuple[float, float]]]:
    """What a run says whose batches of bad examples have so many times the loss, and its steps."""
    out = here.folder / f"two-{factor}-{data}"
    places = ("--training.output_dir", out, "--data.train", data)
    words = (*STEPS, "--training.per_device_train_batch_size", "4", *places, *more)
    script = REPOSITORY / "tests" / "launched" / "left_out.py"
    result = launch(
        [script, factor, "Bad", "--", "--recipe", "recipe.yaml", *words], ranks=2, launcher="none", cwd=here.folder
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr, logged(out)


def test_all_ranks_leave_out_what_one_has_seen(here: OneRank) -> None:
    said, found = on_two_ranks(here, "nan", "data.jsonl")
    assert "the loss is nan at step 3: rank 1 with data.jsonl:21" in said
    said, expected = on_two_ranks(here, "1", "without.jsonl")
    assert "is left out" not in said
    assert_all_but(3, found, expected)


@pytest.mark.parametrize("stage", ["2", pytest.param("3", marks=REST)])
def test_a_leap_that_is_a_number_is_left_out_by_all_ranks(stage: str, here: OneRank) -> None:
    """Known from 20 steps: in the 23rd, one rank's loss is 30 times as high."""
    bad, count = range(22 * 8 + 4, 22 * 8 + 8), 25 * 8
    rows = lines(count, bad)
    (here.folder / "leap.jsonl").write_text("\n".join(rows) + "\n")
    (here.folder / "level.jsonl").write_text("\n".join(rows[: 22 * 8] + rows[23 * 8 :]) + "\n")
    more = ("--training.max_steps", "25", "--training.learning_rate", "0.001")
    more += ("--deepspeed.zero_optimization.stage", stage, "--force")
    said, found = on_two_ranks(here, "30", "leap.jsonl", *more)
    (line,) = [line for line in said.splitlines() if "is left out" in line]
    assert "the loss leaps from " in line
    assert f" at step 23: rank 1 with leap.jsonl:{bad[0] + 1}" in line
    said, expected = on_two_ranks(here, "30", "level.jsonl", *more)
    assert "is left out" not in said
    assert_all_but(23, found, expected)
