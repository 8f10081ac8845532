"""transformers' Trainer on DeepSpeed, with results that do not depend on the number of ranks.

It forwards to its collaborators: `BatchSource` (batches), `StepMonitor` (losses), `Evaluator` (held-out data)
and `CheckpointWriter` (files).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer_utils import EvalLoopOutput

from zerokit import console
from zerokit.checkpoint.pickles import known_classes_only
from zerokit.checkpoint.saved_states import num_groups
from zerokit.checkpoint.step_folder import LATEST, TRAINER_STATE
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.distributed.shared_memory import release_shared_memory
from zerokit.errors import PreemptedError
from zerokit.files import write_file
from zerokit.generation.gathered import gathered
from zerokit.patches import PrivateAttribute, overriding
from zerokit.training.batch_source import BatchSource, FilledDataset, StreamSource, share_batches
from zerokit.training.checkpoint_writer import CheckpointWriter
from zerokit.training.engine import exclude_timer_from_compile, speed_up_calls, undo_dummy_step
from zerokit.training.evaluator import Evaluator
from zerokit.training.folder import checkpoints
from zerokit.training.long_sequences import offload_checkpointed_inputs
from zerokit.training.nvme_optimizer_state import load_nvme_optimizer_states
from zerokit.training.optimizers import warmup_warning
from zerokit.training.peft.prompts import save_virtual_tokens
from zerokit.training.resume import AUTO_RESUME, check_length
from zerokit.training.run_context import RunContext
from zerokit.training.sequence_parallel import collate_part, divide_attention
from zerokit.training.step_monitor import StepMonitor

_TRAINER = "transformers.trainer:Trainer"
for _name in (
    *("_get_dataloader", "_get_num_items_in_batch", "_load_optimizer_and_scheduler", "_load_scaler"),
    *("_train_batch_size", "_prepare_inputs", "_save", "_save_optimizer_and_scheduler"),
    *("_save_rng_state", "_wrap_model"),
):
    PrivateAttribute(_TRAINER, _name, "train with DeepSpeed")

_ELEMENTWISE = ("adamw_torch", "adamw_torch_fused")
"""Values of `optim` that update each element by itself, so parameters can share one flat group."""


@overriding(
    _TRAINER,
    get_train_dataloader="train each example once an epoch, or on a stream",
    get_batch_samples="detect a batch that never comes, and count the losses of a step as the task does",
    training_step="detect a step that is stuck, and keep its loss",
    compute_loss="train on the task's own loss",
    floating_point_ops="count parameters once a run, not once a micro batch",
    get_decay_parameter_names="step all weights as one where none decays",
    _prepare_for_training="begin where Adam begins, and load checkpoints with known classes only",
    _get_grad_norm="stop when the loss or the gradient norm is not a number",
    evaluation_loop="weigh each held-out token the same, and measure the task",
    log="report tokens and losses of all ranks",
    save_model="keep weights that are not numbers from replacing others, and survive a full disk",
    _save_checkpoint="survive a full disk, and name a checkpoint when it is complete",
)
class ZeroTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """Trains every example exactly once an epoch, and measures the loss per held-out token."""

    def __init__(
        self,
        context: RunContext,
        model: PreTrainedModel,
        *,
        operations_per_token: int | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        group, args, task, own = context.group, context.args, context.task, context.own
        place = context.group_place
        share_batches(place)
        divide_attention(place)
        collator = task.collator(context.tokenizer, model)
        if place.parallelism.sequence > 1:
            collator = partial(collate_part, collator, place)
        if context.stream is None:
            self.batches = BatchSource(group, args, task, context.train, context.places, place)
        else:
            args.ignore_data_skip = True  # a stream begins where the checkpoint was
            self.batches = StreamSource(group, args, task, context.stream, collator, context.places, place)
        held_out: Any = context.held_out
        if held_out is not None:
            multiple = args.per_device_eval_batch_size * place.data_ranks
            held_out = FilledDataset(held_out, multiple, task.blank())
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=self.batches.dataset,
            eval_dataset=held_out,
            processing_class=context.tokenizer,
            callbacks=callbacks,
        )
        self._context, self._group, self._task, self._group_place = context, group, task, place
        self.compute_loss_func = task.loss  # makes the Trainer count the number of losses of a step
        self._operations_per_token = operations_per_token
        self._has_one_group = False
        """Whether the optimizer has all weights in one group."""
        self.checkpoints = CheckpointWriter(
            group, Path(args.output_dir), limit=args.save_total_limit, is_writer=args.should_save
        )
        self.monitor = StepMonitor(
            group,
            args,
            self.accelerator,
            self.batches.name_batch,
            on_spike=own.on_spike,
            padding_token=context.tokenizer.pad_token_id,
            copies=place.parallelism.tensor,
        )
        self.evaluator = Evaluator(
            task, lambda total: self.accelerator.reduce(total.to(args.device), reduction="sum").cpu()
        )
        resumes_itself = context.loaded.recipe.training.get("resume_from_checkpoint") == AUTO_RESUME
        self.add_callback(_Hooks(group, self.batches, self.monitor, self.checkpoints, resumes_itself))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of the batch source, or the Trainer's with the order of the batch source."""
        if (loader := self.batches.loader()) is not None:
            return loader
        sampler = self.batches.sampler
        if sampler is None:
            return super().get_train_dataloader()  # type: ignore[no-any-return]
        return self._get_dataloader(  # type: ignore[no-any-return]
            self.train_dataset, "Training", self._train_batch_size, lambda _: sampler, is_training=True
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro batches of a step, and the number of its losses over all ranks.

        A run that is resumed at its end gets none; the Trainer would notice the end after one more step.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        inputs = self.batches.take(epoch_iterator, num_batches)
        # The Trainer guesses from the model's class which labels count.
        counted = [{"labels": each["labels"], "shift_labels": self._task.targets(each)} for each in inputs]
        return inputs, self._get_num_items_in_batch(counted, device)

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The Trainer's; the monitor judges its loss when the optimizer has made its step."""
        self.monitor.count_tokens(inputs)  # before the step: the optimizer's step exchanges the counts
        with self._group.work.step():
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.monitor.add_loss(loss)
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The task's loss, as the mean over all ranks and micro batches of a step."""
        loss, output = self._task.loss(model, inputs, self.args.label_smoothing_factor)
        count = self._task.num_targets(inputs) if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(count).clamp(min=1)  # on its device, so nothing waits for it
        if self.args.average_tokens_across_devices:  # DeepSpeed takes the mean over all ranks but copies
            loss = loss * (self.accelerator.num_processes // self._group_place.parallelism.tensor)
        return (loss, output) if return_outputs else loss

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """FLOPs of the matmuls with parameters, which the Trainer logs at the end."""
        tokens = inputs["input_ids"].numel() if "input_ids" in inputs else 0
        return (self._operations_per_token or 0) * tokens // self._group_place.parallelism.tensor  # summed over ranks

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """The Trainer's, or all names; DeepSpeed drops an empty group."""
        if self._has_one_group:
            return [name for name, _ in model.named_parameters()]
        return super().get_decay_parameter_names(model)  # type: ignore[no-any-return]

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader[Any], resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        # Only the Trainer knows how many steps its epochs have.
        if self._group.ranks.is_main and (
            line := warmup_warning(self.args, self.args.hf_deepspeed_config.config, max_steps)
        ):
            console.note(line)
        if resume_from_checkpoint is not None:
            line = check_length(Path(resume_from_checkpoint), self.args, max_steps, self._context.loaded)
            if line is not None and self._group.ranks.is_main:
                console.note(line)
        self.monitor.state = self.state
        self.checkpoints.begin(self.state)
        self._has_one_group = self._uses_one_group(resume_from_checkpoint)
        is_restricted = resume_from_checkpoint is not None and not self._context.trust_checkpoint
        loaded_first = None if self._task.needs_reference else resume_from_checkpoint
        with known_classes_only() if is_restricted else nullcontext():
            prepared = super()._prepare_for_training(max_steps, train_dataloader, loaded_first)
            if self._context.own.activation_offloading:
                offload_checkpointed_inputs(self.model)
            if self._task.needs_reference:
                # Until a checkpoint is loaded the model is the one that the run started from.
                for dataset in (self.train_dataset, self.eval_dataset):
                    if dataset is not None:
                        self.add_reference(dataset)
                if resume_from_checkpoint is not None:
                    self._load(resume_from_checkpoint)
            if resume_from_checkpoint is not None:
                load_nvme_optimizer_states(self.deepspeed, Path(resume_from_checkpoint), self._group)
        self.checkpoints.problems.collect_from(self.deepspeed)
        if resume_from_checkpoint is None:
            undo_dummy_step(self.deepspeed.optimizer)
        speed_up_calls(self.deepspeed)
        if self.args.torch_compile:
            exclude_timer_from_compile(self.deepspeed)
        # Ranks of a tensor group have exchanged nothing yet, so one may not have opened it.
        self.accelerator.wait_for_everyone()
        release_shared_memory(read_ranks())
        return prepared  # type: ignore[no-any-return]

    def _uses_one_group(self, checkpoint: str | None) -> bool:
        """Whether the optimizer has all weights in one group: ranks exchange each group separately.

        The Trainer makes a group of the weights that decay and one of the others. A checkpoint keeps its
        groups.
        """
        if self.args.weight_decay or self.args.optim not in _ELEMENTWISE:
            return False
        return checkpoint is None or self._group.together(lambda: num_groups(Path(checkpoint))) == 1

    def _load(self, checkpoint: str) -> None:
        """Load a checkpoint as the Trainer's `_prepare_for_training` does at its end."""
        is_whole = not hasattr(self.model, "peft_config")
        deepspeed_load_checkpoint(self.model_wrapped, checkpoint, load_module_strict=is_whole)
        self._load_optimizer_and_scheduler(checkpoint)
        self._load_scaler(checkpoint)

    def add_reference(self, dataset: FilledDataset) -> None:
        """Add to each example the log probabilities that the model has now, without its adapter."""
        without_adapter = getattr(self.model, "disable_adapter", nullcontext)
        self.model_wrapped.eval()
        size, rank, last = self.args.per_device_eval_batch_size, self.args.process_index, len(dataset) - 1
        found = []
        with without_adapter(), torch.no_grad():
            # No data loader: the Trainer's drop, repeat or keep batches as the recipe says.
            for start in range(0, len(dataset), size * self.args.world_size):
                first = start + rank * size
                rows = [dataset[min(index, last)] for index in range(first, first + size)]
                inputs = self._prepare_inputs(self.data_collator(rows))
                with self.compute_loss_context_manager():
                    found.append(self._task.log_probabilities(self.model_wrapped, inputs).float())
                found[-1] = self.accelerator.gather(found[-1]).cpu()
        dataset.more["reference"] = torch.cat(found)[: len(dataset)].tolist()

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float | None:
        # Called once a step, right after it, on every rank.
        return self.monitor.end_step(self.deepspeed.get_global_grad_norm())

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss per held-out token (or example) over all ranks, and the metrics of the task."""
        engine = self._wrap_model(self.model, training=False)
        engine.eval()
        batches = (self._prepare_inputs(each) for each in dataloader)
        section, at_once = self._task.section, self.args.eval_batch_size * self._group_place.data_ranks
        scored = None if section.predict_examples is None else max(1, section.predict_examples // at_once)
        whole = gathered(engine) if section.generates_answers else nullcontext()
        with self.compute_loss_context_manager(), whole:
            found, count = self.evaluator.measure(
                engine, self.model, batches, self.processing_class, scored_batches=scored
            )
        if not math.isfinite(found["loss"]):
            self.monitor.stop(f"the held-out loss is {found['loss']} after step {self.state.global_step}")
        self.evaluator.check_best_metric(self.args.metric_for_best_model, found, metric_key_prefix)
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in found.items()},
            num_samples=count * self.args.eval_batch_size,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the tokens that the monitor counts, and at the end the mean train loss over all ranks."""
        if "train_loss" in logs:  # with the steps since the last log of this rank only
            total = torch.tensor(logs["train_loss"], dtype=torch.float64, device=self.args.device)
            logs["train_loss"] = self.accelerator.reduce(total, reduction="mean").item()
        kept = self.args.include_num_input_tokens_seen
        self.args.include_num_input_tokens_seen = self.monitor.counts_tokens
        super().log(logs, start_time)
        self.args.include_num_input_tokens_seen = kept

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, in a checkpoint also the run's identity. RunError if a weight is not a number."""
        # A sum needs no memory, unlike isfinite(), and one weight that is not a number makes it none.
        total = torch.zeros((), device=self.args.device)
        for weight in _own_weights(self.model):
            total += weight.sum(dtype=torch.float32).to(total.device)
        total = self.accelerator.reduce(total, reduction="sum")
        if not math.isfinite(total.item()):
            self.monitor.stop(f"weights are no longer numbers after step {self.state.global_step}")
        generation_config = getattr(self.model, "generation_config", None)
        if generation_config is not None:
            # The recipe's keys were checked, so what is invalid in it came with the checkpoint. transformers
            # saves it only unchanged, but the Trainer has put the tokenizer's tokens into it.
            generation_config._original_object_hash = hash(generation_config)
        weights = self._gather_weights()
        folder = Path(output_dir or self.args.output_dir)
        with save_virtual_tokens(self.model, weights):
            self.checkpoints.write_weights(folder, partial(self._save, state_dict=weights))
        if _internal_call and self.args.should_save:
            with self.checkpoints.problems.collect():
                self._context.identity.write(folder)
            with self.checkpoints.problems.collect():
                self.batches.write_position(folder)

    def _gather_weights(self) -> Any:
        """The weights to save, on the ranks that save; called on every rank."""
        config = self.deepspeed.config.get("zero_optimization", {})
        if hasattr(self.model, "peft_config") and config.get("stage") == 3:
            # Frozen parameters are not saved with an adapter, so they need not be gathered.
            return self.deepspeed._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
        if self._group_place.parallelism.tensor > 1:  # accelerate asks for a key of stage 3
            return self.deepspeed._consolidated_16bit_state_dict()
        return self.accelerator.get_state_dict(self.deepspeed)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        in_rehearsal = super()._save_checkpoint  # which the rehearsal replaces

        def write(folder: Path) -> None:
            if self._group.policy.writes_files:
                self._write_checkpoint(folder)
            else:
                in_rehearsal(model, trial)

        self.checkpoints.save(self.state, write)

    def _write_checkpoint(self, folder: Path) -> None:
        """Write this rank's part of a checkpoint; called on every rank, and no rank may stop on the way."""
        problems, is_writer = self.checkpoints.problems, self.args.should_save
        self.store_flos()
        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            with problems.collect():
                self._save_optimizer_and_scheduler(str(folder))
            with problems.collect():
                if is_writer:
                    write_file(folder / LATEST, f"global_step{self.deepspeed.global_steps}")
            with problems.collect():
                self._save_rng_state(str(folder))
        if is_writer:
            self.state.stateful_callbacks["TrainerControl"] = self.control.state()
            self.state.save_to_json(str(folder / TRAINER_STATE))


@dataclass
class _Hooks(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Actions of a ZeroTrainer at the Trainer's hooks, after all other callbacks."""

    _group: RankGroup
    _batches: BatchSource
    _monitor: StepMonitor
    _checkpoints: CheckpointWriter
    _resumes_itself: bool
    _first_step: int = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._first_step = state.global_step
        # The Trainer leaves these to others from now on: the checkpoint writer, DeepSpeed, the monitor. To
        # clip gradients and to count tokens it would wait for the device in every step.
        args.save_total_limit, args.max_grad_norm, args.include_num_input_tokens_seen = None, 0.0, "no"

    def on_epoch_begin(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._batches.begin_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._batches.epoch is not None:
            state.epoch = self._batches.epoch
        if self._monitor.is_asked_to_leave:
            control.should_save, control.should_evaluate = True, False

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        if not self._monitor.is_asked_to_leave:
            return
        asked = self._group.gather_objects(self._group.leave_request.why)
        rank, why = next((rank, why) for rank, why in enumerate(asked) if why is not None)
        left = checkpoints(Path(args.output_dir))
        hint = "There is no checkpoint to resume from"
        if left and self._resumes_itself:
            hint = f"The same command continues from {left[-1]}"
        elif left:
            hint = f"Resume with --resume auto, from {left[-1]}"
        raise PreemptedError(f"preempted after step {state.global_step} (rank {rank}: {why})", hint=hint)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == self._first_step:  # of a run that is resumed at its end
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        self._checkpoints.end(state)


def _own_weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The weights that this rank holds: whole ones, or under ZeRO-3 its part of each that is in memory.

    All parts have the same length, and the last ones end in uninitialized memory (``torch.empty`` in
    DeepSpeed's partition_parameters.py).
    """
    parameter: Any  # with what DeepSpeed adds to a parameter
    for parameter in model.parameters():
        part = parameter.data
        if hasattr(parameter, "ds_tensor"):
            part = parameter.ds_tensor
            if part.dim() == 0:  # a placeholder for a part on NVMe
                continue
            before = len(part) * torch.distributed.get_rank(group=parameter.ds_process_group)
            part = part[: max(0, parameter.ds_numel - before)]
        if part.is_floating_point() and part.numel():
            yield part
