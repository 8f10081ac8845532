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

if TYPE_CHECKING:
    from datasets import Dataset


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


class BlanksLast(Sampler[int]):
    """The examples of a :class:`FilledUp`, shuffled anew in each epoch or in order, then its blanks.

    The order depends on the seed and the epoch alone, so that a resumed run continues it.
    """

    def __init__(self, dataset: FilledUp, *, shuffle: bool, seed: int) -> None:
        self.dataset: Sized = dataset
        self.num_examples = len(dataset.examples)
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; the data loader calls it at the beginning of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        import torch

        order = list(range(self.num_examples))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.num_examples, generator=generator).tolist()
        yield from order
        yield from range(self.num_examples, len(self.dataset))
