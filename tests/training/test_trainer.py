"""What one Trainer does with its collaborators, and what a reference says."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from tests.sources import PACKAGE
from zerokit import console
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.patches import REGISTERED, Override
from zerokit.recipe import load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.recipe.training_keys import OwnKeys
from zerokit.training.engine import exclude_timer_from_compile, speed_up_calls
from zerokit.training.examples import IGNORED
from zerokit.training.run_context import RunContext
from zerokit.training.tasks import task_of
from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.training.trainer import ZeroTrainer, _own_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task

INFINITE, NAN = float("inf"), float("nan")


def test_few_methods_of_the_trainer_are_overridden() -> None:
    """Each override can break with a release of transformers; private methods change in any of them."""
    own = {name for name in vars(ZeroTrainer) if hasattr(Trainer, name) and not name.startswith("__")}
    own -= {"_abc_impl"}
    assert len(own) <= 12
    assert len([name for name in own if name.startswith("_")]) <= 5
    assert ZeroTrainer.__bases__ == (Trainer,)
    others = [
        f"{file}: {patch.name}"
        for file in sorted((PACKAGE / "training").rglob("*.py"))
        if "transformers.trainer:Trainer" in file.read_text(encoding="utf-8")
        for patch in REGISTERED
        if patch.module == "transformers.trainer" and isinstance(patch, Override) and patch.name not in own
    ]
    assert others == []


def test_the_timer_of_a_compiled_module_is_not_compiled() -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    timer = SimpleNamespace(start=lambda: torch.ones(2) + 1)
    engine: Any = SimpleNamespace(tput_timer=timer)
    for compiled in (1, 0):
        counter.clear()
        torch.compile(lambda: timer.start(), backend=counter)()
        assert counter.frame_count == compiled
        exclude_timer_from_compile(engine)


def test_the_engine_is_set_to_train_where_it_does_not() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    modes: list[bool] = []

    def train(mode: bool = True) -> None:
        modes.append(mode)
        module.train(mode)

    engine: Any = SimpleNamespace(module=module, train=train, zero_grad=None)
    speed_up_calls(engine)
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


def zero_trainer(
    task: Task,
    model: PreTrainedModel,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
    held_out: Dataset | None = None,
) -> Any:
    """A trainer of a copy of the model."""
    context: Any = RunContext(RankGroup(Ranks()), load_recipe(None, []))
    context.task, context.args, context.tokenizer = task, args, tokenizer
    context.train, context.stream, context.own = Dataset.from_list(rows), None, OwnKeys()
    context.places, context.held_out = (lambda _: []), held_out
    return ZeroTrainer(context, copy.deepcopy(model))


def test_the_loss_of_a_step_waits_for_no_device(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """On the meta device there is nothing to wait for: reading a number fails."""

    class LossOfSix(CausalLM):
        device = "cpu"

        def loss(self, *_: Any) -> tuple[torch.Tensor, None]:
            return torch.tensor(6.0, device=self.device), None

    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    rows = [{"input_ids": [5, 6], "labels": [5, 6]}]
    trainer = zero_trainer(LossOfSix(TaskSection(seq_len=16)), model, args, tokenizer, rows)
    for items, loss in ((3.0, 2.0), (0.0, 6.0)):  # of blanks alone there is nothing to divide by
        found = trainer.compute_loss(None, {}, num_items_in_batch=torch.tensor(items))
        assert found.item() == loss
        assert found.dtype is torch.float32
    LossOfSix.device = "meta"
    count = torch.tensor(3.0, device="meta")
    assert trainer.compute_loss(None, {}, num_items_in_batch=count).is_meta
    trainer = zero_trainer(task_of(TaskSection(seq_len=16)), model, args, tokenizer, rows)
    ids = torch.zeros(2, 5, dtype=torch.long, device="meta")
    output = SimpleNamespace(loss=torch.zeros((), device="meta"))
    batch = {"input_ids": ids, "labels": ids}
    assert trainer.compute_loss(lambda **_: output, batch, num_items_in_batch=count).is_meta


def test_a_polynomial_schedule_finds_the_defaults_of_an_optimizer_under_zero() -> None:
    from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
    from deepspeed.runtime.base_optimizer import ZeROOptimizer

    wrapped = ZeROOptimizer()
    wrapped.optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    assert wrapped.defaults["lr"] == 0.5
    wrapped.defaults = {"lr": 2}
    assert wrapped.defaults == {"lr": 2}
    assert isinstance(DeepSpeedOptimizerWrapper.defaults, property)


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
    args = TrainingArguments(str(tmp_path), remove_unused_columns=False, report_to="none", **{**options, **keys})
    trainer = zero_trainer(task, model, args, tokenizer, rows, held_out=Dataset.from_list(rows[:1]))
    train_batches = trainer.get_train_dataloader()
    trainer.add_reference(trainer.train_dataset)
    reference = trainer.train_dataset.more["reference"]
    assert len(reference) == len(trainer.train_dataset)
    assert len({chosen for chosen, _ in reference[:3]}) == 1
    assert len({rejected for _, rejected in reference[:3]}) == 3
    assert all("reference" in batch for batch in train_batches)
    assert trainer.get_eval_dataloader().dataset is trainer.eval_dataset


def test_a_step_has_the_losses_that_its_task_counts(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """The Trainer thinks that a class without "ForCausalLM" in its name does not shift labels."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("openai-gpt", vocab_size=320, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    )
    task = task_of(TaskSection(seq_len=16)).for_model(
        model.config, load_recipe(None, ["--model", "x", "--data.train", "x"])
    )
    rows = [{"input_ids": [5] * length, "labels": [5] * length} for length in (3, 4, 7, 9)]
    args = TrainingArguments(str(tmp_path), remove_unused_columns=False, report_to="none", use_cpu=True)
    trainer = zero_trainer(task, model, args, tokenizer, rows)
    trainer.state.max_steps = 1
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
    rows = [{"input_ids": [5, 6], "labels": [5, 6]}] * 15
    trainer = zero_trainer(task, model, args, tokenizer, rows)
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
