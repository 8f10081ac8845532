"""The batches of a run: from a data set with blank examples at its end, or from a stream.

All ranks must run the same number of batches of one size. accelerate would repeat examples to fill the last
batches, so that losses depend on the number of ranks. zerokit appends blank examples instead: one token
without a label, which adds nothing to a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from transformers import TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from zerokit.distributed.group import RankGroup
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.errors import ZerokitError
from zerokit.patches import Patch, wrap
from zerokit.training.datasets import Places, name_examples
from zerokit.training.packing import Layout, can_arrange, lengths_of
from zerokit.training.streaming import MicroBatch, Stream, StreamOfRank, write_position
from zerokit.training.tasks.task import Collator, Task

_DATA_LOADERS = Patch(
    "accelerate.accelerator", "prepare_data_loader", "have the ranks of a group read the same batches"
)


_shared: list[GroupPlace] = []
"""The place of the current run, if the ranks of a group share batches."""


def share_batches(place: GroupPlace) -> None:
    """Have accelerate's data loaders give the ranks of a group the same batches, also to evaluate.

    Each run of a process calls it, also without groups.
    """
    _shared[:] = [place] if place.parallelism.group_size > 1 else []

    def prepare(original: Any, loader: Any, device: Any, **given: Any) -> Any:
        for place in _shared:
            given |= {"num_processes": place.data_ranks, "process_index": place.data_rank, "torch_device_mesh": None}
        return original(loader, device, **given)

    if _shared:
        wrap(_DATA_LOADERS, prepare)


class FilledDataset(TorchDataset[dict[str, Any]]):
    """A data set, followed by blank examples until its length is a multiple of `multiple`."""

    def __init__(self, examples: Dataset, multiple: int, blank: Mapping[str, Any]) -> None:
        self.examples = examples
        self.blank = dict(blank)
        self.num_blanks = -len(examples) % multiple
        self.more: dict[str, Sequence[Any]] = {}
        """Further features by name, each with a value for every example and blank."""

    def __len__(self) -> int:
        return len(self.examples) + self.num_blanks

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)  # by which iteration ends
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """A batch, read at once. Data loaders of torch call this method."""
        there = [index for index in indices if index < len(self.examples)]
        found = dict(zip(there, self.examples.__getitems__(there), strict=True)) if there else {}
        return [
            found.get(index, self.blank) | {name: values[index] for name, values in self.more.items()}
            for index in indices
        ]


class BlanksLastSampler(Sampler[int]):
    """The examples of a :class:`FilledDataset`, shuffled in each epoch or in order, then its blanks.

    The order depends only on the seed and the epoch, so a resumed run continues it.

    Args:
        grouped: examples of a step if they have similar lengths (`group_by_length`); else None.
    """

    def __init__(
        self,
        dataset: FilledDataset,
        *,
        shuffle: bool,
        seed: int,
        layout: Layout | None = None,
        grouped: int | None = None,
    ) -> None:
        self.dataset: Sized = dataset
        self.num_examples = len(dataset.examples)
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.layout = layout
        self.grouped = grouped
        self.lengths = None
        if layout is not None or grouped is not None:
            self.lengths = [*lengths_of(dataset.examples), *[1] * dataset.num_blanks]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch, before it begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.num_examples))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        if self.grouped is not None:
            assert self.lengths is not None
            lengths = self.lengths[: self.num_examples]
            order = get_length_grouped_indices(lengths, self.grouped, generator=generator)
        elif self.shuffle:
            order = torch.randperm(self.num_examples, generator=generator).tolist()
        order += range(self.num_examples, len(self.dataset))
        if self.layout is not None:
            assert self.lengths is not None
            yield from self.layout.arranged(order, self.lengths)
        else:
            yield from order


class BatchSource:
    """The batches of a data set that is in memory or in files."""

    sampler: BlanksLastSampler | None = None
    """The order of the examples; None leaves it to the Trainer."""
    epoch: float | None = None
    """Where the run is in its data; None leaves it to the Trainer."""

    def __init__(
        self,
        group: RankGroup,
        args: TrainingArguments,
        task: Task,
        examples: Any,
        places: Places,
        group_place: GroupPlace,
    ) -> None:
        self._group, self._args, self._places, self._group_place = group, args, places, group_place
        self.dataset = examples
        arranges = can_arrange(args)
        batch = args.per_device_train_batch_size
        if hasattr(examples, "__len__") and (arranges or task.needs_reference):
            self.dataset = FilledDataset(examples, batch * group_place.data_ranks if arranges else 1, task.blank())
            if arranges:
                step = batch * args.gradient_accumulation_steps * group_place.data_ranks
                self.sampler = BlanksLastSampler(
                    self.dataset,
                    shuffle=args.train_sampling_strategy == "random",
                    seed=args.seed if args.data_seed is None else args.data_seed,
                    layout=task.layout(batch, step),
                    grouped=step if args.train_sampling_strategy == "group_by_length" else None,
                )

    def loader(self) -> DataLoader[Any] | None:
        """A loader of this rank's micro batches; None if the Trainer makes it."""
        return None

    def begin_epoch(self, number: int) -> None:
        """Choose the order of an epoch; the Trainer cannot reach a sampler that accelerate has wrapped."""
        if self.sampler is not None:
            self.sampler.set_epoch(number)

    def take(self, batches: Iterator[Any], count: int) -> list[Any]:
        """The inputs of up to `count` micro batches; fewer at the end of the data."""
        taken = []
        for _ in range(count):
            with self._group.work.batch():
                batch = next(batches, None)
            if batch is None:
                break
            taken.append(batch)
        return taken

    def name_batch(self, rank: int, micro: int, step: int) -> str:
        """The examples of a micro batch; an empty string on ranks that do not look them up."""
        if self.sampler is None or not self._group.ranks.is_main:
            return ""
        args, ranks = self._args, self._group_place.data_ranks
        size, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        # accelerate deals batches out to ranks in turn (`BatchSamplerShard`). The last step of an epoch may
        # have fewer.
        steps_per_epoch = math.ceil(len(self.sampler) / (size * ranks * accumulation))
        batch = (
            step % steps_per_epoch * accumulation + micro
        ) * ranks + rank // self._group_place.parallelism.group_size
        rows = list(self.sampler)[batch * size : (batch + 1) * size]
        rows = [row for row in rows if row < self.sampler.num_examples]
        return name_examples(rank, rows, self._places)

    def write_position(self, checkpoint: Path) -> None:
        """Write into a checkpoint where its run is in the data, if the Trainer does not know."""
        return


class StreamSource(BatchSource):
    """The batches of a stream, which is one epoch as long as the run."""

    def __init__(
        self,
        group: RankGroup,
        args: TrainingArguments,
        task: Task,
        stream: Stream,
        collator: Collator,
        places: Places,
        group_place: GroupPlace,
    ) -> None:
        batch, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        examples = StreamOfRank(
            stream,
            rank=group_place.data_rank,
            ranks=group_place.data_ranks,
            batch_size=batch,
            accumulation=accumulation,
            layout=task.layout(batch, batch * accumulation * group_place.data_ranks),
            blank=task.blank(),
            collator=collator,
        )
        super().__init__(group, args, task, examples, places, group_place)
        self._next_step = stream.begin
        """Where the step after this one begins."""
        self._numbers: list[list[int]] = []
        """Numbers of the examples in each micro batch of the step."""

    def loader(self) -> DataLoader[Any]:
        """A loader that returns micro batches as they are, and draws no random numbers of the run."""
        args = self._args
        return DataLoader(
            self.dataset,
            batch_size=None,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            generator=torch.Generator().manual_seed(args.seed),
        )

    def take(self, batches: Iterator[MicroBatch | ZerokitError], count: int) -> list[Any]:
        """The inputs of `count` micro batches. ZerokitError on every rank if one cannot read its own."""
        found = self._group.together(lambda: self._read(batches, count))
        self._next_step, self._numbers = found[-1].end, [batch.numbers for batch in found]
        self.epoch = float(self._next_step.epoch)
        return [batch.inputs for batch in found]

    def _read(self, batches: Iterator[MicroBatch | ZerokitError], count: int) -> list[MicroBatch]:
        found = []
        for _ in range(count):
            with self._group.work.batch():
                batch = next(batches)
            if isinstance(batch, ZerokitError):
                raise batch
            found.append(batch)
        return found

    def name_batch(self, rank: int, micro: int, step: int) -> str:
        """The examples of a micro batch; an empty string on ranks that did not have it."""
        if rank != self._group.ranks.rank:
            return ""
        numbers = self._numbers[micro]
        return name_examples(rank, numbers, self._places) if numbers else ""

    def write_position(self, checkpoint: Path) -> None:
        """Write into a checkpoint where its run is in the data."""
        write_position(self._next_step, checkpoint)
