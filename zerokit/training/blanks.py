"""Blank examples: an epoch in which every example counts exactly once, on any number of ranks.

All ranks must run the same number of batches of one size. Where the examples do not come out even,
accelerate repeats some from the beginning, so that the last update of an epoch, and the held-out loss,
depend on the number of ranks. zerokit fills up with blanks instead: one token, not trained on. Losses are
sums over tokens divided by the tokens of all ranks, so a blank adds nothing to either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from zerokit.training.packing import lengths_of

if TYPE_CHECKING:
    from datasets import Dataset

    from zerokit.training.packing import Layout


class FilledUp(TorchDataset[dict[str, Any]]):
    """A data set, followed by as many blanks as make its length a multiple of `multiple`."""

    def __init__(self, examples: Dataset, multiple: int, blank: Mapping[str, Any]) -> None:
        self.examples = examples
        self.blank = dict(blank)
        self.num_blanks = -len(examples) % multiple
        self.more: dict[str, Sequence[Any]] = {}
        """More features by name, of each example and blank in turn."""

    def __len__(self) -> int:
        return len(self.examples) + self.num_blanks

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)  # by which iteration ends
        found = self.examples[index] if index < len(self.examples) else self.blank
        return {**found, **{name: values[index] for name, values in self.more.items()}}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """A batch, by one look-up of its examples, as torch's loaders ask for it."""
        there = [index for index in indices if index < len(self.examples)]
        found = dict(zip(there, self.examples.__getitems__(there), strict=True)) if there else {}
        more = self.more.items()
        return [
            {**found.get(index, self.blank), **{name: values[index] for name, values in more}}
            for index in indices
        ]


class BlanksLast(Sampler[int]):
    """The examples of a :class:`FilledUp`, shuffled anew in each epoch or in order, then its blanks.

    The order depends on the seed and the epoch alone, so that a resumed run continues it. With a layout, the
    examples of each optimizer step, which stay the same, are spread over its micro batches by their lengths.

    Args:
        dataset: the examples and blanks.
        shuffle: whether in an order of chance.
        seed: of that.
        layout: of a step; None takes them as they come.
        grouped: examples of a step, to be of like lengths as transformers draws them for `group_by_length`;
            None draws any.
    """

    def __init__(
        self,
        dataset: FilledUp,
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
        """Choose the order; the data loader calls it at the beginning of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        import torch

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
