"""transformers' Trainer, with an epoch and a held-out loss that do not depend on the number of ranks.

It ends a run that has diverged at the step that shows it, before anything is saved.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler
from transformers.trainer_utils import EvalLoopOutput

from zerokit import console
from zerokit.checkpoint.pickles import known_classes_only
from zerokit.checkpoint.saved_states import num_groups
from zerokit.distributed.ranks import read_ranks
from zerokit.distributed.shared_memory import release_shared_memory
from zerokit.errors import PreemptedError, RecipeError, did_you_mean
from zerokit.patches import overriding
from zerokit.training.blanks import BlanksLast, FilledUp
from zerokit.training.dummy_step import undo_dummy_step
from zerokit.training.folder import checkpoints
from zerokit.training.optimizers import warm_up_line
from zerokit.training.packing import may_arrange
from zerokit.training.swapped import load_swapped_states
from zerokit.training.watchful_trainer import WatchfulTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader, Sampler

    from zerokit.training.identity import Identity
    from zerokit.training.tasks.task import Task

_BY_ELEMENT = ("adamw_torch", "adamw_torch_fused")
"""Values of `optim` that know of no matrices, to which it is all the same what lies beside an element."""


@overriding(
    "transformers.trainer:Trainer",
    _get_train_sampler="train each example once an epoch",
    _run_epoch="train each example once an epoch",
    _prepare_for_training="begin where Adam begins",
    get_decay_parameter_names="step all weights as one where none decays",
    _finalize_training="report the loss of all ranks",
    create_scheduler="let a schedule read the optimizer's defaults under ZeRO",
    _get_eval_sampler="weigh each held-out token the same",
    evaluation_loop="weigh each held-out token the same, and measure the task",
    compute_loss="train on the task's own loss",
    get_batch_samples="know a batch that never comes",
    _get_num_items_in_batch="count the losses of a step as the task does",
    floating_point_ops="count parameters once a run, not once a micro batch",
    _maybe_log_save_evaluate="save and leave where a rank was asked to",
    save_model="keep weights that are no numbers from replacing any",
)
class ZeroTrainer(WatchfulTrainer):
    """Trains every example exactly once an epoch, and measures the loss per held-out token."""

    def __init__(
        self,
        *,
        task: Task,
        identity: Identity,
        trust_checkpoint: bool,
        operations_per_token: int | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._task = task
        self.compute_loss_func = task.loss  # that there is one has the Trainer count what it is divided by
        self._identity = identity
        self._trust_checkpoint = trust_checkpoint
        self._operations_per_token = operations_per_token
        self._in_one_group = False
        """Whether the optimizer has all weights in one."""
        self.metric_names: tuple[str, ...] = ()
        """Of the last evaluation, its loss included."""
        self.train_dataset: Any
        self.eval_dataset: Any
        if hasattr(self.train_dataset, "__len__") and (may_arrange(self.args) or task.needs_reference):
            batch = self.args.per_device_train_batch_size * self.args.world_size
            multiple = batch if may_arrange(self.args) else 1
            self.train_dataset = FilledUp(self.train_dataset, multiple, task.blank())
        if self.eval_dataset is not None:
            self.eval_dataset = FilledUp(
                self.eval_dataset,
                self.args.per_device_eval_batch_size * self.args.world_size,
                task.blank(),
            )

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader[Any], resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        # Only the Trainer knows how many steps its epochs have.
        if self._group.ranks.is_main and (
            line := warm_up_line(self.args, self.args.hf_deepspeed_config.config, max_steps)
        ):
            console.note(line)
        is_restricted = resume_from_checkpoint is not None and not self._trust_checkpoint
        self._in_one_group = self._may_be_one_group(resume_from_checkpoint)
        if self._task.needs_reference:
            # Before a checkpoint is loaded: until then the model is the one that the run started from.
            prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
            for dataset in (self.train_dataset, self.eval_dataset):
                if dataset is not None:
                    self._note_reference(dataset)
        with known_classes_only() if is_restricted else nullcontext():
            if not self._task.needs_reference:
                prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
            elif resume_from_checkpoint is not None:
                self._load(resume_from_checkpoint)
            if resume_from_checkpoint is not None:
                load_swapped_states(self.deepspeed, Path(resume_from_checkpoint), self._group)
        self.disk_problems.note_those_of(self.deepspeed)
        if resume_from_checkpoint is None:
            undo_dummy_step(self.deepspeed.optimizer)
        self.watch_steps()
        release_shared_memory(read_ranks())  # every rank has exchanged parameters, and so has it open
        return prepared  # type: ignore[no-any-return]

    def _may_be_one_group(self, checkpoint: str | None) -> bool:
        """Whether the optimizer has all weights in one group: ranks exchange each group by itself.

        The Trainer makes one of the weights that decay and one of the others. A checkpoint has the groups of
        the run that saved it.
        """
        if self.args.weight_decay or self.args.optim not in _BY_ELEMENT:
            return False
        return checkpoint is None or self._group.together(lambda: num_groups(Path(checkpoint))) == 1

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """The Trainer's, or all; DeepSpeed leaves out a group that is empty."""
        if self._in_one_group:
            return [name for name, _ in model.named_parameters()]
        return super().get_decay_parameter_names(model)  # type: ignore[no-any-return]

    def _load(self, checkpoint: str) -> None:
        """What the Trainer does with a checkpoint at the end of `_prepare_for_training`."""
        from transformers.integrations.deepspeed import deepspeed_load_checkpoint

        is_whole = not hasattr(self.model, "peft_config")
        deepspeed_load_checkpoint(self.model_wrapped, checkpoint, load_module_strict=is_whole)
        self._load_optimizer_and_scheduler(checkpoint)
        self._load_scaler(checkpoint)

    def _note_reference(self, dataset: FilledUp) -> None:
        """Have each example bring along what the model says of it now, without its adapter."""
        without = getattr(self.model, "disable_adapter", nullcontext)
        self.model_wrapped.eval()
        size, rank, last = self.args.per_device_eval_batch_size, self.args.process_index, len(dataset) - 1
        found = []
        with without(), torch.no_grad():
            # No loader: those of the Trainer leave out, repeat and keep what the recipe has them.
            for start in range(0, len(dataset), size * self.args.world_size):
                first = start + rank * size
                rows = [dataset[min(index, last)] for index in range(first, first + size)]
                inputs = self._prepare_inputs(self.data_collator(rows))
                with self.compute_loss_context_manager():
                    found.append(self._task.log_probabilities(self.model_wrapped, inputs).float())
                found[-1] = self.accelerator.gather(found[-1]).cpu()
        dataset.more["reference"] = torch.cat(found)[: len(dataset)].tolist()

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, FilledUp) or not may_arrange(self.args):
            return super()._get_train_sampler(train_dataset)  # type: ignore[no-any-return]
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        strategy, batch = self.args.train_sampling_strategy, self.args.per_device_train_batch_size
        step = batch * self.args.gradient_accumulation_steps * self.args.world_size
        self._train_sampler = BlanksLast(
            dataset,
            shuffle=strategy == "random",
            seed=seed,
            layout=self._task.layout(batch, step),
            grouped=step if strategy == "group_by_length" else None,
        )
        return self._train_sampler

    def _run_epoch(self, *, epoch: int, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            # A run resumed at its end: the Trainer would notice after one more step.
            self.control.should_training_stop = True
            return
        # When a resumed epoch skips its first batches, accelerate wraps the sampler once more, and the
        # Trainer's own set_epoch no longer reaches it: the epoch would go on in another order.
        if self._train_sampler is not None:
            self._train_sampler.set_epoch(epoch)
        super()._run_epoch(epoch=epoch, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        # transformers adds what was not logged yet from rank 0 alone.
        self._tr_loss: torch.Tensor = self.accelerator.reduce(self._tr_loss, reduction="mean")
        return super()._finalize_training(*args, **kwargs)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        return SequentialSampler(eval_dataset)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The Trainer's; the polynomial one reads its optimizer's defaults, which ZeRO's wrapper has not."""
        wrapper: Any = getattr(self.optimizer, "optimizer", None)  # in accelerate's
        inner = getattr(wrapper, "optimizer", None)
        if inner is not None and not hasattr(wrapper, "defaults"):
            wrapper.defaults = inner.defaults
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[no-any-return]

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss per held-out token (or example) over all ranks, and the metrics of the task.

        transformers averages the means of the batches, which weighs a token by the batch it is in.
        """
        model = self._wrap_model(self.model, training=False)
        model.eval()
        total = torch.zeros(2, dtype=torch.float64)  # sum of losses, their number, then scores
        num_batches = 0
        for batch in dataloader:
            num_batches += 1
            inputs = self._prepare_inputs(batch)
            with torch.no_grad(), self.compute_loss_context_manager():
                loss, output = self._task.loss(model, inputs)
                scores = self._task.scores(output, inputs, self.model, self.processing_class)
            sums = torch.tensor(
                [float(loss), int(self._task.num_targets(inputs)), *scores], dtype=torch.float64
            )
            total = sums if num_batches == 1 else total + sums
            del output  # the logits, which would lie beside those of the next batch
        total = self.accelerator.reduce(total.to(self.args.device), reduction="sum").cpu()
        held_out = float(total[0] / total[1])
        if not math.isfinite(held_out):
            self._stop(f"the held-out loss is {held_out} after step {self.state.global_step}")
        found = {"loss": held_out, **self._task.metrics(total[2:].tolist())}
        self.metric_names = tuple(found)
        best = (self.args.metric_for_best_model or "loss").removeprefix(f"{metric_key_prefix}_")
        if best not in found:  # before the first step, if there is an evaluation then
            raise RecipeError(
                f"there is no metric '{best}' of {self._task.section.type}",
                where="training.metric_for_best_model",
                hint=did_you_mean(best, found),
            )
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics=metrics,
            num_samples=num_batches * self.args.eval_batch_size,
        )

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The task's loss, as the mean over what all ranks and micro batches of a step have of it."""
        loss, output = self._task.loss(model, inputs, self.args.label_smoothing_factor)
        count = self._task.num_targets(inputs) if num_items_in_batch is None else num_items_in_batch
        loss = loss / torch.as_tensor(count).clamp(min=1)  # on its device, for which nobody waits
        if self.args.average_tokens_across_devices:  # DeepSpeed takes the mean over the ranks
            loss = loss * self.accelerator.num_processes
        return (loss, output) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """The number of losses of a step. The Trainer guesses from the model's class which labels count."""
        counted = [
            {"labels": batch["labels"], "shift_labels": self._task.targets(batch)} for batch in batch_samples
        ]
        return super()._get_num_items_in_batch(counted, device)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's; it also counts tokens over all ranks, which is no part of getting a batch."""
        return super().get_batch_samples(self._batches(epoch_iterator), *args, **kwargs)

    def _batches(self, epoch_iterator: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._group.work.batch():
                batch = next(epoch_iterator, None)
            if batch is None:
                return
            yield batch

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Of a step's products with parameters, as the Trainer logs them in the end."""
        tokens = inputs["input_ids"].numel() if "input_ids" in inputs else 0
        return (self._operations_per_token or 0) * tokens

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if not self._leaves:
            super()._maybe_log_save_evaluate(*args, **kwargs)
            return
        self.control.should_save, self.control.should_evaluate = True, False
        super()._maybe_log_save_evaluate(*args, **kwargs)
        asked = self._group.gather_objects(self._group.leave_request.why)
        rank, why = next((rank, why) for rank, why in enumerate(asked) if why is not None)
        left = checkpoints(Path(self.args.output_dir))
        raise PreemptedError(
            f"preempted after step {self.state.global_step} (rank {rank}: {why})",
            hint=f"Resume with --training.resume_from_checkpoint true, from {left[-1]}"
            if left
            else "There is no checkpoint to resume from",
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, if all of them are numbers; in a checkpoint, also which run it is of.

        Raises:
            RunError: they are not; the same on every rank.
        """
        # A sum needs no memory, unlike isfinite(), and one weight that is no number makes it none.
        total = torch.zeros((), device=self.args.device)
        for weight in _own_weights(self.model):
            total += weight.sum(dtype=torch.float32).to(total.device)
        total = self.accelerator.reduce(total, reduction="sum")
        if not math.isfinite(total.item()):
            self._stop(f"weights are no longer numbers after step {self.state.global_step}")
        of_model = getattr(self.model, "generation_config", None)
        if of_model is not None:
            # What is not valid in it came with the checkpoint, as the recipe's keys were checked. Such a one
            # is saved only as it came, and the Trainer has put the tokenizer's tokens into it.
            of_model._original_object_hash = hash(of_model)
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self.args.should_save:
            with self.disk_problems.noted():
                self._identity.write(Path(output_dir))


def _own_weights(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The weights that this rank holds: whole ones, or under ZeRO-3 its part of each that is in memory.

    Parts are of one length, and what fills up the last ones is whatever the memory had (``torch.empty`` in
    DeepSpeed's partition_parameters.py).
    """
    parameter: Any  # with what DeepSpeed adds to one
    for parameter in model.parameters():
        part = parameter.data
        if hasattr(parameter, "ds_tensor"):
            part = parameter.ds_tensor
            if part.dim() == 0:  # it is on NVMe, and this one number stands for it
                continue
            before = len(part) * torch.distributed.get_rank(group=parameter.ds_process_group)
            part = part[: max(0, parameter.ds_numel - before)]
        if part.is_floating_point() and part.numel():
            yield part
