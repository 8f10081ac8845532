"""transformers' Trainer on streamed data: a rank takes its own of them, a checkpoint knows where it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from zerokit.errors import ZerokitError
from zerokit.patches import overriding
from zerokit.training.open_stream import write_position
from zerokit.training.spikes import named, worst
from zerokit.training.streaming import MicroBatch, StreamOfRank
from zerokit.training.trainer import ZeroTrainer

if TYPE_CHECKING:
    from zerokit.training.streaming import Stream
    from zerokit.training.tasks.task import Task


@overriding(
    "transformers.trainer:Trainer",
    get_train_dataloader="train on streamed data",
    get_batch_samples="end all ranks alike where one cannot read",
    _maybe_log_save_evaluate="count epochs of streamed data",
    save_model="note where a run is in streamed data",
)
class StreamingTrainer(ZeroTrainer):
    """Goes through a stream as through one epoch, which is as long as the run."""

    def __init__(self, *, stream: Stream, task: Task, args: Any, **kwargs: Any) -> None:
        args.ignore_data_skip = True  # a stream begins where the checkpoint was
        batch, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        dataset = StreamOfRank(
            stream,
            rank=args.process_index,
            ranks=args.world_size,
            batch_size=batch,
            accumulation=accumulation,
            layout=task.layout(batch, batch * accumulation * args.world_size),
            blank=task.blank(),
            collator=kwargs["data_collator"],
        )
        super().__init__(task=task, args=args, train_dataset=dataset, **kwargs)
        self._end = stream.begin
        """Where the step after this one begins."""
        self._numbers: list[list[int]] = []
        """Of the examples of each micro batch of the step."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Of this rank's micro batches as they are; it draws nothing from the run's random numbers."""
        args = self.args
        return DataLoader(
            self.train_dataset,
            batch_size=None,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            generator=torch.Generator().manual_seed(args.seed),
        )

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, *args: Any) -> Any:
        """The Trainer's, of a step that every rank has read."""
        found = self._group.together(lambda: self._read(epoch_iterator, num_batches))
        self._end, self._numbers = found[-1].end, [one.numbers for one in found]
        return super().get_batch_samples(iter([one.inputs for one in found]), num_batches, *args)

    def _read(self, batches: Iterator[MicroBatch | ZerokitError], count: int) -> list[MicroBatch]:
        found = []
        for _ in range(count):
            with self._group.work.batch():
                one = next(batches)
            if isinstance(one, ZerokitError):
                raise one
            found.append(one)
        return found

    def _batch_of(self, losses: list[torch.Tensor]) -> str:
        rank, micro = worst(self._group.gather_objects([float(loss) for loss in losses]))
        numbers = self._numbers[micro]
        words = named(rank, numbers, self._places) if numbers else f"rank {rank}"
        return str(self._group.gather_objects(words)[rank])

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.state.epoch = float(self._end.epoch)  # the Trainer takes the whole run for one
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As of a run that is not streamed; a checkpoint also has the place in the data.

        Raises:
            RunError: weights are no numbers; the same on every rank.
        """
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and self.args.should_save:
            with self.disk_problems.noted():
                write_position(self._end, Path(output_dir))
