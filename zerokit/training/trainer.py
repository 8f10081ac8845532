"""transformers' Trainer, with an epoch and a held-out loss that do not depend on the number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from zerokit.distributed.libraries import release_shared_memory
from zerokit.distributed.ranks import read_ranks
from zerokit.patches import overriding
from zerokit.training.blanks import BlanksLast, FilledUp
from zerokit.training.dummy_step import undo_dummy_step
from zerokit.training.examples import IGNORED

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Sampler


@overriding(
    "transformers.trainer:Trainer",
    _get_train_sampler="train each example once an epoch",
    _run_epoch="train each example once an epoch",
    _prepare_for_training="begin where Adam begins",
    _finalize_training="report the loss of all ranks",
    _get_eval_sampler="weigh each held-out token the same",
    evaluation_loop="weigh each held-out token the same",
)
class ZeroTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """Trains every example exactly once an epoch, and measures the loss per held-out token."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._train_sampler: BlanksLast | None = None
        self.train_dataset: Any
        self.eval_dataset: Any
        if self.train_dataset is not None and self._can_fill_up():
            self.train_dataset = FilledUp(
                self.train_dataset, self.args.per_device_train_batch_size * self.args.world_size
            )
        if self.eval_dataset is not None:
            self.eval_dataset = FilledUp(
                self.eval_dataset, self.args.per_device_eval_batch_size * self.args.world_size
            )

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader[Any], resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if resume_from_checkpoint is None:
            undo_dummy_step(self.deepspeed.optimizer)
        release_shared_memory(read_ranks())  # every rank has exchanged parameters, and so has it open
        return prepared  # type: ignore[no-any-return]

    def _can_fill_up(self) -> bool:
        """Whether losses are normalised by the tokens of all ranks, and the order is ours to choose."""
        return (
            self.model_accepts_loss_kwargs
            and self.args.average_tokens_across_devices
            and not self.args.dataloader_drop_last
            and self.args.train_sampling_strategy in ("random", "sequential")
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(dataset, FilledUp):
            return super()._get_train_sampler(train_dataset)  # type: ignore[no-any-return]
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        shuffle = self.args.train_sampling_strategy == "random"
        self._train_sampler = BlanksLast(dataset, shuffle=shuffle, seed=seed)
        return self._train_sampler

    def _run_epoch(self, *, epoch: int, **kwargs: Any) -> None:
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

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Mean loss per held-out token over all ranks.

        transformers averages the means of the batches, which weighs a token by the batch it is in.
        """
        model = self._wrap_model(self.model, training=False)
        model.eval()
        total = torch.zeros(2, dtype=torch.float64)  # sum of losses, number of tokens
        num_batches = 0
        for batch in dataloader:
            num_batches += 1
            inputs = self._prepare_inputs(batch)
            tokens = int((inputs["labels"][..., 1:] != IGNORED).sum())
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = model(**inputs).loss
            if tokens:  # the mean over the tokens of a batch of blanks is not a number
                total += torch.tensor([float(loss) * tokens, tokens], dtype=torch.float64)
        total = self.accelerator.reduce(total.to(self.args.device), reduction="sum").cpu()
        metrics = {f"{metric_key_prefix}_loss": float(total[0] / total[1])}
        return EvalLoopOutput(
            predictions=None,
            label_ids=None,
            metrics=metrics,
            num_samples=num_batches * self.args.eval_batch_size,
        )
