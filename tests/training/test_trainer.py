"""When a run has diverged, and when fp16 is finding its loss scale."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Trainer

from zerokit.distributed.stuck import Work
from zerokit.errors import RunError
from zerokit.training.trainer import MOST_SKIPPED_STEPS, ZeroTrainer

INFINITE = float("inf")


class Steps:
    """Steps of a trainer that is told what each gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fp16: bool) -> None:
        self.trainer: Any = ZeroTrainer.__new__(ZeroTrainer)
        self.trainer._losses, self.trainer._num_skipped = None, 0
        self.trainer._group = SimpleNamespace(work=Work())
        self.trainer.args = SimpleNamespace(fp16=fp16, output_dir="out", learning_rate=1e-3)
        self.trainer.state = SimpleNamespace(global_step=6)
        self.patch = monkeypatch

    def __call__(self, *losses: float, norm: float | None = 1.0, skipped: bool = False) -> None:
        self.trainer.accelerator = SimpleNamespace(
            optimizer_step_was_skipped=skipped, reduce=lambda tensor, reduction: tensor
        )
        for loss in losses:
            self.patch.setattr(Trainer, "training_step", lambda *_, loss=loss: torch.tensor(loss))
            self.trainer.training_step(None, None)
        self.patch.setattr(Trainer, "_get_grad_norm", lambda *_, **__: norm)
        assert self.trainer._get_grad_norm(None) == norm


@pytest.mark.parametrize(
    ("losses", "norm", "skipped", "what"),
    [
        ((2.0, float("nan"), 1.0), 1.0, False, "the loss is nan at step 7"),
        ((2.0,), INFINITE, False, "the gradient norm is inf at step 7"),
        (
            (2.0,),
            INFINITE,
            True,
            "the gradient norm is inf at step 7",
        ),  # DeepSpeed skips in fp32 and bf16, too
        ((INFINITE,), None, False, "the loss is inf at step 7"),
    ],
)
def test_the_first_figure_that_is_no_number_ends_the_run(
    losses: tuple[float, ...], norm: float | None, skipped: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, fp16=False)
    steps(2.5, 2.0)
    with pytest.raises(RunError, match=f"diverged: {what}"):
        steps(*losses, norm=norm, skipped=skipped)


def test_fp16_may_skip_steps_while_it_finds_its_loss_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, fp16=True)
    for _ in range(3):
        for _ in range(MOST_SKIPPED_STEPS - 1):
            steps(2.0, norm=INFINITE, skipped=True)
        steps(2.0)
    with pytest.raises(RunError, match="the gradient norm is inf"):
        steps(2.0, norm=INFINITE)
    for _ in range(MOST_SKIPPED_STEPS - 1):
        steps(2.0, norm=INFINITE, skipped=True)
    with pytest.raises(RunError, match="or train in bf16"):
        steps(2.0, norm=INFINITE, skipped=True)
