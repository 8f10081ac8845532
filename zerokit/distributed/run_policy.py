"""What differs between a run and its rehearsal."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class RunPolicy:
    """Decisions that differ between a run and its rehearsal. The defaults are those of a run."""

    reads_weights: bool = True
    """Whether files of weights exist and are read. A rehearsal builds models from their config alone."""
    writes_files: bool = True
    """Whether checkpoints and models are written."""
    has_all_ranks: bool = True
    """Whether every rank is a process. A rehearsal may leave out rank 0."""
    has_values: bool = True
    """Whether losses and gradients are numbers that mean something."""
    uses_this_machine: bool = True
    """Whether the disks, memory, cores and compilers of this machine matter."""

    @classmethod
    def current(cls) -> RunPolicy:
        """The policy of this process, for code without a RankGroup. `RankGroup.policy` is the same."""
        return REHEARSAL if "ZEROKIT_REHEARSAL" in os.environ else cls()


REHEARSAL = RunPolicy(
    reads_weights=False, writes_files=False, has_all_ranks=False, has_values=False, uses_this_machine=False
)
