"""When a run has diverged, when fp16 is finding its loss scale, and what a reference says."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.trainer_callback import TrainerState

from zerokit import console
from zerokit.distributed.stuck import Work
from zerokit.errors import RunError
from zerokit.recipe import load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.staging import make_staging
from zerokit.training.blanks import BlanksLast, FilledUp
from zerokit.training.disks import DiskProblems
from zerokit.training.engine_calls import keep_out_of_graphs, shorten_calls
from zerokit.training.examples import IGNORED
from zerokit.training.spikes import UsualLoss, looked_up
from zerokit.training.tasks import task_of
from zerokit.training.trainer import ZeroTrainer, _own_weights
from zerokit.training.watchful_trainer import MOST_SKIPPED_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task

INFINITE, NAN = float("inf"), float("nan")


def has_norm(trainer: Any, norm: float | None) -> None:
    """What DeepSpeed says of the gradients of a step."""
    found = None if norm is None else torch.tensor(norm, dtype=torch.float32)
    trainer.deepspeed = SimpleNamespace(get_global_grad_norm=lambda: found)


class Steps:
    """Steps of a trainer that is told what each gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fp16: bool) -> None:
        self.trainer: Any = ZeroTrainer.__new__(ZeroTrainer)
        self.trainer._losses, self.trainer._num_skipped = [], 0
        self.trainer._left_out, self.trainer._max_skipped = False, None
        self.trainer._num_tokens = torch.zeros((), dtype=torch.float64)
        self.trainer._usual_loss, self.trainer._on_spike = UsualLoss(), "note"
        self.trainer._num_tokens = torch.zeros((), dtype=torch.float64)
        self.trainer._places = lambda rows: [f"data.jsonl:{row + 1}" for row in rows]
        self.trainer._train_sampler = BlanksLast(FilledUp(range(6), 8, {}), shuffle=False, seed=0)
        self.trainer._group = SimpleNamespace(
            work=Work(),
            leave_request=SimpleNamespace(why=None),
            gather_objects=lambda losses: [losses],
            ranks=SimpleNamespace(is_main=True),
        )
        self.trainer.args = SimpleNamespace(
            fp16=fp16,
            output_dir="out",
            learning_rate=1e-3,
            device="cpu",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=3,
            world_size=1,
            include_num_input_tokens_seen="non_padding",
        )
        self.trainer.state = SimpleNamespace(global_step=6, num_input_tokens_seen=0)
        self.patch = monkeypatch

    def __call__(self, *losses: float, norm: float | None = 1.0, skipped: bool = False) -> None:
        self.trainer.accelerator = SimpleNamespace(
            optimizer_step_was_skipped=skipped, reduce=lambda tensor, reduction: tensor
        )
        for loss in losses:
            self.patch.setattr(Trainer, "training_step", lambda *_, loss=loss: torch.tensor(loss))
            self.trainer.training_step(None, {})
        has_norm(self.trainer, norm)
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


@pytest.mark.parametrize("skips", [False, True])
def test_tokens_of_all_micro_batches_are_counted_in_their_step(
    skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = Steps(monkeypatch, fp16=False).trainer
    trainer._max_skipped = 5 if skips else None
    trainer._last_loss, trainer._num_left_out = torch.zeros(()), 0
    trainer.accelerator = SimpleNamespace(
        optimizer_step_was_skipped=False, reduce=lambda tensor, reduction: tensor
    )

    def training_step(*_: Any) -> torch.Tensor:
        if skips:  # DeepSpeed's engine asks in its step, which is in this one
            trainer._leaves_out(torch.ones(()))
        return torch.ones(())

    monkeypatch.setattr(Trainer, "training_step", training_step)
    has_norm(trainer, 1.0)
    for tokens in (3, 5):
        batch = {"attention_mask": torch.ones(1, tokens)}
        trainer.training_step(None, batch)
        trainer._track_num_input_tokens(batch)
        trainer._get_grad_norm(None)
    assert trainer.state.num_input_tokens_seen == 8


def test_a_step_waits_for_its_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, fp16=False)
    asked: list[str] = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: asked.append("tolist") or tolist(self))
    for name in ("item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: asked.append(name))
    steps.trainer.training_step = lambda *_: None
    assert steps.trainer._clip_grad_norm(None) is None
    steps(norm=2.0)
    assert asked == ["tolist"]


def test_a_task_s_own_loss_waits_for_no_device() -> None:
    """On the meta device there is nothing to wait for: whoever asks for a number fails."""
    trainer: Any = ZeroTrainer.__new__(ZeroTrainer)
    trainer._task = SimpleNamespace(loss=lambda *_: (torch.tensor(6.0, device=device), None))
    trainer.args = SimpleNamespace(label_smoothing_factor=0.0, average_tokens_across_devices=True)
    trainer.accelerator = SimpleNamespace(num_processes=2)
    device = "meta"
    assert trainer.compute_loss(None, {}, num_items_in_batch=torch.tensor(3.0, device=device)).is_meta
    device = "cpu"
    for items, loss in ((3.0, 4.0), (0.0, 12.0)):  # of blanks alone there is nothing to divide by
        found = trainer.compute_loss(None, {}, num_items_in_batch=torch.tensor(items))
        assert found.item() == loss
        assert found.dtype is torch.float32
    trainer._task = task_of(TaskSection(seq_len=16))
    ids = torch.zeros(2, 5, dtype=torch.long, device="meta")
    of_model = SimpleNamespace(loss=torch.zeros((), device="meta"))
    batch = {"input_ids": ids, "labels": ids}
    count = torch.tensor(3.0, device="meta")
    assert trainer.compute_loss(lambda **_: of_model, batch, num_items_in_batch=count).is_meta


def test_the_timer_of_a_compiled_module_is_not_compiled() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    timer = SimpleNamespace(start=lambda: torch.ones(2) + 1)
    engine: Any = SimpleNamespace(tput_timer=timer)
    for compiled in (1, 0):
        counter.clear()
        torch.compile(lambda: timer.start(), backend=counter)()
        assert counter.frame_count == compiled
        keep_out_of_graphs(engine)


def test_the_engine_is_set_to_train_where_it_does_not() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    modes: list[bool] = []

    def train(mode: bool = True) -> None:
        modes.append(mode)
        module.train(mode)

    engine: Any = SimpleNamespace(module=module, train=train, zero_grad=None)
    shorten_calls(engine)
    engine.train()
    assert modes == []
    module.eval()
    engine.train()
    engine.train()
    assert modes == [True]
    assert all(one.training for one in module.modules())
    module(torch.ones(2)).sum().backward()
    engine.zero_grad()
    assert [one.grad for one in module.parameters()] == [None, None]


def test_a_leap_of_the_loss_names_its_examples_and_may_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps(monkeypatch, fp16=False)
    for number in range(30):
        steps(2.0 + number % 2, 1.0, 1.0)
    steps(2.0, 9.0, 1.0)
    said = "the loss leaps from 4.5 to 12 at step 7: rank 0 with data.jsonl:3, data.jsonl:4"
    assert capsys.readouterr().err == f"zerokit: warning: {said}\n"
    steps(2.5, 1.0, 1.0)
    assert capsys.readouterr().err == ""
    steps.trainer._on_spike = "stop"
    with pytest.raises(RunError, match=f"out: {said}. Look at these examples, or go on with"):
        steps(2.0, 9.0, 1.0)
    with pytest.raises(RunError, match=r"warmup_steps\. The batch that shows it: rank 0 with data\.jsonl:5"):
        steps(2.0, 9.0, NAN)
    monkeypatch.setattr("zerokit.training.watchful_trainer.is_rehearsal", lambda: True)
    steps.trainer._places = None  # nobody looks for them: numbers mean nothing
    steps(2.0, 9.0, NAN)


def test_steps_that_leap_are_left_out_until_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps(monkeypatch, fp16=False)
    trainer = steps.trainer
    trainer._max_skipped, trainer._num_left_out, trainer._last_loss = 2, 0, torch.zeros(())
    trainer._usual_loss = UsualLoss(may_stay=False)

    def step(loss: float, norm: float | None = 1.0, skipped: bool = False) -> bool:
        trainer.accelerator = SimpleNamespace(
            optimizer_step_was_skipped=skipped, reduce=lambda tensor, reduction: tensor
        )
        left_out: list[bool] = []

        def training_step(*_: Any) -> torch.Tensor:
            left_out.append(trainer._leaves_out(torch.tensor(loss)))  # as the engine asks in its step
            return torch.tensor(loss)

        monkeypatch.setattr(Trainer, "training_step", training_step)
        assert math.isfinite(trainer.training_step(None, {}))
        has_norm(trainer, norm)
        assert trainer._get_grad_norm(None) == (norm if not (left_out[0] or skipped) else None)
        return left_out[0]

    assert not any(step(2.0 + number % 2 / 10) for number in range(30))
    for _ in range(3):
        assert step(9.0, norm=INFINITE)
        assert not step(2.0, norm=NAN, skipped=True)  # DeepSpeed has found that no gradient is a number
        assert not step(2.0)
    said = capsys.readouterr().err
    assert said.count("The step is left out (1 in a row; 3 end the run)\n") == 3
    assert said.startswith(
        "zerokit: warning: the loss leaps from 2.05 to 9 at step 7: rank 0 with data.jsonl:1, data.jsonl:2. "
    )
    assert said.count("zerokit: warning: the loss leaps from 2.0") == 3
    assert said.count("gradients are no numbers at step 7: ") == 3
    assert step(NAN)
    assert step(9.0)
    with pytest.raises(RunError, match=r"jsonl:2; 2 steps before it had to be left out, too\. Look at"):
        step(9.0)


def test_a_loss_that_stays_high_is_usual_after_some_steps() -> None:
    usual = UsualLoss()
    leaps = [usual.exceeded_by(2.0 + step % 2 * 0.1 + (2.0 if step >= 100 else 0.0)) for step in range(400)]
    assert [step for step, leap in enumerate(leaps) if leap is not None] == [100, 101, 102, 103]
    assert usual.exceeded_by(9.0) == pytest.approx(4.05)


def test_examples_are_looked_for_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in (0, 2, 2, 5):
            made.append(number)
            yield number

    places = looked_up(numbers(), "line {}".format)
    assert places([2, 0]) == ["line 2", "line 0"]
    assert made == [0, 2, 2]
    monkeypatch.setattr("zerokit.training.spikes._LONGEST_SEARCH", 0.0)
    assert places([1]) == ["line 2"]
    assert places([3]) == []
    assert made == [0, 2, 2]
    monkeypatch.undo()
    assert places([3]) == ["line 5"]
    assert places([4]) == []


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


def saving(folder: Path, *, is_main: bool) -> Any:
    """A trainer that saves checkpoints into a folder, and nothing else."""
    trainer: Any = ZeroTrainer.__new__(ZeroTrainer)
    trainer._group = SimpleNamespace(
        gather_objects=lambda problem: [problem],
        broadcast_object=lambda value: value,
        ranks=SimpleNamespace(is_node_main=is_main),
    )
    trainer._aside, trainer._checkpoint_bytes = None, 0
    trainer.args = SimpleNamespace(output_dir=str(folder), save_total_limit=1, should_save=is_main)
    trainer.disk_problems, trainer.other_places = DiskProblems(), []
    trainer.model = None
    return trainer


@pytest.mark.parametrize("is_main", [True, False])
def test_the_best_checkpoint_is_one_that_was_saved(
    is_main: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = saving(tmp_path, is_main=is_main)

    def init(trainer: Any, *_: Any) -> None:
        trainer.state = TrainerState(best_metric=9.0, best_global_step=1, best_model_checkpoint="one")

    monkeypatch.setattr(Trainer, "_init_training_state", init)
    trainer._init_training_state()
    sealed: list[str | None] = []
    monkeypatch.setattr(
        "zerokit.training.saving_trainer.publish", lambda *_: sealed.pop() if sealed else None
    )

    def save(metric: float, step: int, error: Exception | None) -> tuple[Any, ...]:
        state = trainer.state
        state.global_step = step
        if metric < state.best_metric:
            state.best_metric, state.best_global_step = metric, step

        def save_checkpoint(*_: Any) -> None:
            assert Path(trainer._get_output_dir(None)) == tmp_path / ".unfinished"
            if state.best_global_step == step:
                written = tmp_path / ".unfinished" / f"checkpoint-{step}"
                written.mkdir(parents=True, exist_ok=True)
                state.best_model_checkpoint = str(written)
            if error is not None:
                raise error

        monkeypatch.setattr(Trainer, "_save_checkpoint", save_checkpoint)
        trainer._save_checkpoint(None, None)
        assert is_main != (tmp_path / ".unfinished").exists()
        return state.best_metric, state.best_global_step, Path(state.best_model_checkpoint).name

    assert save(3.0, 2, OSError("full")) == (9.0, 1, "one")
    assert save(4.0, 3, None) == (4.0, 3, "checkpoint-3")  # better than all that are left
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
    assert save(2.0, 4, OSError("full")) == (4.0, 3, "checkpoint-3")
    sealed.append("the server is full")
    assert save(2.0, 4, None) == (4.0, 3, "checkpoint-3")
    with pytest.raises(KeyError):
        save(1.0, 5, KeyError())
    assert trainer.args.save_total_limit == 1


def test_the_output_folder_itself_is_never_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def save(_: Any, folder: str, state_dict: Any) -> None:
        Path(folder).mkdir(exist_ok=True)
        raise OSError("full")

    monkeypatch.setattr(Trainer, "_save", save)
    trainer = saving(tmp_path / "out", is_main=True)
    (tmp_path / "out").mkdir()
    unfinished = make_staging(tmp_path / "out" / ".unfinished")
    before = sorted(tmp_path.rglob("*"))
    for folder in (
        None,
        f"{tmp_path}/out/../out",
        str(unfinished / "checkpoint-1"),
        f"{tmp_path}/out/.saving",
    ):
        trainer._save(folder)
        assert sorted(tmp_path.rglob("*")) == before


def zero_trainer(
    task: Task,
    model: PreTrainedModel,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
    **more: Any,
) -> Any:
    """A trainer of a copy of the model, with as little of a run beside it as it gets."""
    given: dict[str, Any] = {
        **dict.fromkeys(("identity", "group", "places", "operations_per_token")),
        **{"trust_checkpoint": False, "on_spike": "note", "max_skipped_steps": 5},
        **more,
    }
    return ZeroTrainer(
        task=task,
        model=copy.deepcopy(model),
        args=args,
        train_dataset=Dataset.from_list(rows),
        data_collator=task.collator(tokenizer, model),
        **given,
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"dataloader_drop_last": True},
        {"average_tokens_across_devices": False},
        {"train_sampling_strategy": "group_by_length"},
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    ],
)
def test_every_example_gets_its_reference_whatever_loads_the_batches(
    keys: dict[str, Any], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    task = task_of(TaskSection(type="dpo", seq_len=16))
    rows = [
        {"input_ids": [5, 6], "labels": [IGNORED, 6], "rejected_input_ids": [5, other]}
        | {"rejected_labels": [IGNORED, other]}
        for other in (7, 8, 9)
    ]
    options = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "use_cpu": True}
    args = TrainingArguments(
        str(tmp_path), remove_unused_columns=False, report_to="none", **{**options, **keys}
    )
    trainer = zero_trainer(task, model, args, tokenizer, rows, eval_dataset=Dataset.from_list(rows[:1]))
    train_batches = trainer.get_train_dataloader()
    trainer._note_reference(trainer.train_dataset)
    reference = trainer.train_dataset.more["reference"]
    assert len(reference) == len(trainer.train_dataset)
    assert len({chosen for chosen, _ in reference[:3]}) == 1
    assert len({rejected for _, rejected in reference[:3]}) == 3
    assert all("reference" in batch for batch in train_batches)
    assert trainer.get_eval_dataloader().dataset is trainer.eval_dataset


def test_a_step_has_the_losses_that_its_task_counts(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """The Trainer thinks that a class without "ForCausalLM" in its name does not shift labels."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("openai-gpt", vocab_size=320, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    )
    task = task_of(TaskSection(seq_len=16)).for_model(
        model.config, load_recipe(None, ["--model", "x", "--data.train", "x"])
    )
    rows = [{"input_ids": [5] * length, "labels": [5] * length} for length in (3, 4, 7, 9)]
    args = TrainingArguments(str(tmp_path), remove_unused_columns=False, report_to="none", use_cpu=True)
    trainer = zero_trainer(task, model, args, tokenizer, rows, group=SimpleNamespace(work=Work()))
    batches = [dict(task.collator(tokenizer, model)(rows[start : start + 2])) for start in (0, 2)]
    _, count = trainer.get_batch_samples(iter(batches), 2, "cpu")
    assert count == 2 + 3 + 6 + 8


@pytest.mark.parametrize(("drops", "steps"), [(True, 3), (False, 6)])
def test_a_warm_up_is_held_against_the_steps_that_the_trainer_makes(
    drops: bool,
    steps: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Begun(Exception):  # noqa: N818 - no error
        pass

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(Trainer, "_prepare_for_training", begin)
    console.stderr.cache_clear()
    task = task_of(TaskSection(seq_len=16))
    args = TrainingArguments(
        str(tmp_path),
        remove_unused_columns=False,
        report_to="none",
        use_cpu=True,
        per_device_train_batch_size=8,
        num_train_epochs=3,
        warmup_steps=3,
        dataloader_drop_last=drops,
    )
    group = SimpleNamespace(ranks=SimpleNamespace(is_main=True))
    rows = [{"input_ids": [5, 6], "labels": [5, 6]}] * 15
    trainer = zero_trainer(task, model, args, tokenizer, rows, group=group)
    args.hf_deepspeed_config = SimpleNamespace(config={})
    with pytest.raises(Begun):
        trainer.train()
    told = f"training.warmup_steps is 3 and the run has {steps} steps" in capsys.readouterr().err
    assert told == (steps <= 3)


def test_what_fills_up_the_parts_of_zero3_is_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five elements on four ranks each has two, and the memory of the last three is any."""
    parts = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, NAN], [INFINITE, NAN]])
    seen = []
    for rank, part in enumerate(parts):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group, rank=rank: rank)
        parameter = SimpleNamespace(data=torch.empty(0), ds_tensor=part, ds_numel=5, ds_process_group=None)
        model: Any = SimpleNamespace(parameters=lambda parameter=parameter: [parameter])
        seen += [number for held in _own_weights(model) for number in held.tolist()]
    assert seen == [1, 2, 3, 4, 5]
    parameter.ds_tensor = torch.tensor(1.0)  # as DeepSpeed leaves of what is on NVMe
    assert not [*_own_weights(model)]
