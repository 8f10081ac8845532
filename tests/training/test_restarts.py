"""When a run that crashed is started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from zerokit.recipe.load import load_recipe
from zerokit.training.restarts import Restarts

AUTO = ["--resume", "auto"]


def save(run: Path, step: int) -> None:
    """A checkpoint-N that is complete by the names of its files."""
    states = run / f"checkpoint-{step}" / f"global_step{step}"
    states.mkdir(parents=True)
    (states.parent / "trainer_state.json").write_text("{}")
    (states.parent / "latest").write_text(states.name)
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (states / name).touch()


def restarts(run: Path, retries: int, *words: str) -> Restarts:
    return Restarts(load_recipe(None, [f"--training.output_dir={run}", *words]), retries)


def answer(restart: Restarts) -> list[str] | None:
    words = restart("a rank was lost")
    return None if words is None else list(words)


def test_it_continues_from_new_checkpoints_until_the_retries_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restart = restarts(tmp_path, 3)
    assert restart.how_to_continue() == "No checkpoint was written: start it again"
    assert answer(restart) == []
    save(tmp_path, 5)
    assert restart.how_to_continue() == "Continue with --resume auto"
    assert answer(restart) == AUTO
    save(tmp_path, 10)
    (tmp_path / "checkpoint-10/latest").unlink()  # incomplete: nothing new
    assert answer(restart) is None
    assert capsys.readouterr().err.splitlines() == [
        "zerokit: restart 1 of 3: a rank was lost; the run begins again, as there is no checkpoint",
        f"zerokit: restart 2 of 3: a rank was lost; the run continues from {tmp_path}/checkpoint-5",
        "zerokit: not restarted: no checkpoint was saved since the last restart",
    ]
    shutil.rmtree(tmp_path / "checkpoint-10")
    save(tmp_path, 10)
    assert answer(restart) == AUTO
    save(tmp_path, 15)
    assert answer(restart) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("--training.resume_from_checkpoint", "checkpoint-5"), []),
        (("--training.resume_from_checkpoint", "true"), AUTO),
        (("--training.resume_from_checkpoint", "auto"), AUTO),
    ],
    ids=["new, with --force", "from an earlier one", "true", "auto"],
)
def test_checkpoints_that_the_run_was_to_set_aside_are_not_continued(
    words: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    for step in (5, 10):
        save(tmp_path, step)
    assert answer(restarts(tmp_path, 1, *words)) == expected
    assert answer(restarts(tmp_path, 0, *words)) is None
