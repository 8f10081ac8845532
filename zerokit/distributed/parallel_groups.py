"""The place of a rank among groups of ranks that read the same batches. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.hardware.cluster import DATA_PARALLEL, Parallelism


@dataclass(frozen=True)
class GroupPlace:
    """The place of a rank: its group's batches, and its part of their tokens.

    Groups are consecutive ranks, those of tensor parallelism innermost, as in
    :class:`~zerokit.hardware.cluster.Parallelism`.
    """

    rank: int = 0
    world_size: int = 1
    parallelism: Parallelism = DATA_PARALLEL

    @property
    def data_rank(self) -> int:
        """The number of this rank's group: ranks of a group read the same batches."""
        return self.rank // self.parallelism.group_size

    @property
    def data_ranks(self) -> int:
        """Groups, which read different batches. ZerokitError if they do not divide the ranks."""
        return self.parallelism.data_ranks(self.world_size)

    @property
    def sequence_rank(self) -> int:
        """The number of this rank's part of each sequence, from 0."""
        return self.rank % self.parallelism.group_size // self.parallelism.tensor
