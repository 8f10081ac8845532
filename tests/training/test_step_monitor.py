"""When a run has diverged, and when fp16 is finding its loss scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainingArguments
from transformers.trainer_callback import TrainerState

from zerokit.distributed.group import RankGroup
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.distributed.ranks import Ranks
from zerokit.distributed.run_policy import REHEARSAL
from zerokit.errors import RunError
from zerokit.recipe.model import TaskSection
from zerokit.training.batch_source import BatchSource
from zerokit.training.examples import Tokenized
from zerokit.training.prepare_data import find_places
from zerokit.training.step_monitor import MAX_SKIPPED_FP16_STEPS, StepMonitor, UsualLoss
from zerokit.training.tasks import task_of

INFINITE, NAN = float("inf"), float("nan")


class OneRank:
    """accelerate's, with one rank."""

    optimizer_step_was_skipped = False

    def reduce(self, tensor: torch.Tensor, reduction: str) -> torch.Tensor:
        return tensor


class Steps:
    """Steps of a run of six examples, two in a micro batch."""

    def __init__(self, folder: Path, *, fp16: bool = False) -> None:
        args = TrainingArguments(
            str(folder),
            use_cpu=True,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=3,
            learning_rate=1e-3,
            train_sampling_strategy="sequential",
            include_num_input_tokens_seen="non_padding",
        )
        args.fp16 = fp16
        self.group = RankGroup(Ranks())
        self.accelerator: Any = OneRank()
        rows = Dataset.from_list([{"input_ids": [1] * 4, "labels": [1] * 4}] * 6)
        source = BatchSource(
            self.group,
            args,
            task_of(TaskSection(seq_len=16)),
            rows,
            lambda numbers: [f"data.jsonl:{number + 1}" for number in numbers],
            GroupPlace(),
        )
        assert source.sampler is not None
        source.sampler.layout = None
        self.monitor = StepMonitor(
            self.group, args, self.accelerator, source.name_batch, on_spike="note", padding_token=0
        )
        self.monitor.state = TrainerState(global_step=6)

    def __call__(self, *losses: float, norm: float | None = 1.0, skipped: bool = False) -> None:
        self.accelerator.optimizer_step_was_skipped = skipped
        for loss in losses:
            self.monitor.add_loss(torch.tensor(loss))
        assert self.monitor.end_step(None if norm is None else torch.tensor(norm)) == norm


@pytest.mark.parametrize(
    ("losses", "norm", "skipped", "what"),
    [
        ((2.0, NAN, 1.0), 1.0, False, "the loss is nan at step 7"),
        ((2.0,), INFINITE, False, "the gradient norm is inf at step 7"),
        ((2.0,), INFINITE, True, "the gradient norm is inf at step 7"),  # skipped by DeepSpeed
        ((INFINITE,), None, False, "the loss is inf at step 7"),
    ],
)
def test_the_first_figure_that_is_not_a_number_ends_the_run(
    losses: tuple[float, ...], norm: float | None, skipped: bool, what: str, tmp_path: Path
) -> None:
    steps = Steps(tmp_path)
    steps(2.5, 2.0)
    with pytest.raises(RunError, match=f"diverged: {what}"):
        steps(*losses, norm=norm, skipped=skipped)


@pytest.mark.parametrize(
    ("counts", "has_mask", "expected"),
    [("non_padding", True, 8), ("non_padding", False, 8), ("all", True, 10), ("no", True, 0)],
)
def test_tokens_of_all_micro_batches_are_counted_in_their_step(
    counts: str, has_mask: bool, expected: int, tmp_path: Path
) -> None:
    monitor = Steps(tmp_path).monitor
    monitor.counts_tokens = counts
    for tokens in (3, 5):
        batch = {"input_ids": torch.tensor([[*[1] * tokens, 0]])}
        if has_mask:
            batch["attention_mask"] = batch["input_ids"]
        monitor.count_tokens(batch)
        monitor.add_loss(torch.ones(()))
        monitor.end_step(1.0)
    assert monitor.state.num_input_tokens_seen == expected


def test_a_step_waits_for_its_device_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    waits: list[str] = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: waits.append("tolist") or tolist(self))
    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: waits.append(name))
    steps(2.0, norm=2.0)
    assert waits == ["tolist"]


def test_a_spike_names_its_examples_and_may_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(tmp_path)
    for number in range(30):
        steps(2.0 + number % 2, 1.0, 1.0)
    steps(2.0, 9.0, 1.0)
    warned = "the loss leaps from 4.5 to 12 at step 7: rank 0 with data.jsonl:3, data.jsonl:4"
    assert capsys.readouterr().err == f"zerokit: warning: {warned}\n"
    steps(2.5, 1.0, 1.0)
    assert capsys.readouterr().err == ""
    steps.monitor._on_spike = "stop"
    with pytest.raises(RunError, match=f"{warned}. Look at these examples, or go on with"):
        steps(2.0, 9.0, 1.0)
    with pytest.raises(RunError, match=r"warmup_steps\. The batch that shows it: rank 0 with data\.jsonl:5"):
        steps(2.0, 9.0, NAN)
    steps.group.policy = REHEARSAL
    steps.monitor._name_batch = None  # type: ignore[assignment]  # not called: values mean nothing
    steps(2.0, 9.0, NAN)


def test_a_loss_that_stays_high_is_usual_after_some_steps() -> None:
    usual = UsualLoss()
    leaps = [usual.exceeded_by(2.0 + step % 2 * 0.1 + (2.0 if step >= 100 else 0.0)) for step in range(400)]
    assert [step for step, leap in enumerate(leaps) if leap is not None] == [100, 101, 102, 103]
    assert usual.exceeded_by(9.0) == pytest.approx(4.05)


def test_examples_are_found_by_the_numbers_that_tokenizing_keeps() -> None:
    rows = Dataset.from_dict({"input_ids": [[1]] * 4})
    kept = Tokenized(rows, {}, 0, numbers=Dataset.from_dict({"example": [0, 2, 2, 5]}))
    assert find_places(kept, "line {}".format)([3, 0]) == ["line 5", "line 0"]
    assert find_places(Tokenized(rows, {}, 0), "line {}".format)([3, 0]) == []


def test_fp16_may_skip_steps_while_it_finds_its_loss_scale(tmp_path: Path) -> None:
    steps = Steps(tmp_path, fp16=True)
    for _ in range(3):
        for _ in range(MAX_SKIPPED_FP16_STEPS - 1):
            steps(2.0, norm=INFINITE, skipped=True)
        steps(2.0)
    with pytest.raises(RunError, match="the gradient norm is inf"):
        steps(2.0, norm=INFINITE)
    for _ in range(MAX_SKIPPED_FP16_STEPS - 1):
        steps(2.0, norm=INFINITE, skipped=True)
    with pytest.raises(RunError, match="or train in bf16"):
        steps(2.0, norm=INFINITE, skipped=True)


def test_another_rank_is_asked_to_leave(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps(2.0)
    assert not steps.monitor.is_asked_to_leave
    steps.accelerator.reduce = lambda tensor, reduction: tensor + torch.tensor([0.0, 1.0, 0.0])
    steps(2.0)
    assert steps.monitor.is_asked_to_leave
