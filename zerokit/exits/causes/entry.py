"""An entry of the table: the meaning of a log line, and what to do.

An entry matches words of a library, so it applies to any script. `{name}` in its texts is a group of its
pattern, and `{what}` the whole match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How close a line is to the cause: the smallest weight is reported, and of equal ones the first line."""

    ENDED = 0
    """The system or the scheduler ended the run."""
    CAUSE = 1
    EXCEPTION = 2
    """A traceback without a known meaning."""
    KILLED = 3
    """A launcher saw a signal; the process itself could print nothing."""
    LEFT = 4
    """A launcher saw an exit code that a rank chose, such as by sys.exit(3)."""
    CONSEQUENCE = 5
    """Seen when another rank has failed, or while waiting for it."""
    GENERAL = 6
    """Printed for every such failure; another line may have the reason."""
    MENTIONED = 7
    """Words of a cause in a line that is no error: a warning, or a retry."""
    EXIT = 8
    """A launcher saw that something failed."""


@dataclass(frozen=True)
class Cause:
    """One entry of the table."""

    name: str
    message: str
    fix: str
    patterns: tuple[re.Pattern[str], ...]
    """Each starts with plain text, which re finds quickly."""
    weight: Weight = Weight.CAUSE


def cause(name: str, message: str, fix: str, *patterns: str, weight: Weight = Weight.CAUSE) -> Cause:
    """Make an entry; patterns are strings."""
    return Cause(name, message, fix, tuple(map(re.compile, patterns)), weight)


HOST_MEMORY = (
    "Start fewer ranks per node, use fewer data loader workers or less offload, or request more "
    "memory; 'zerokit estimate' shows what the host needs"
)
RUNS_ALONE = (
    "A line runs on some ranks only (if rank == 0, one batch less, an unused expert): 'zerokit "
    "rehearse' names both lines"
)
STILL_RAN = (
    "a line runs on some ranks only, which 'zerokit rehearse' names; or a rank is slow (a save, "
    "a slow disk): 'py-spy dump' shows its line"
)
"""Why a rank has not reached a collective that has not failed."""
REASON = r"eason\"?:\s{0,20}\"?"
"""Text before a reason in Kubernetes; other programs use these words too."""

OUT_OF_MEMORY = "cuda-out-of-memory"
GPU_TAKEN = "gpu-taken"
NCCL_TIMEOUT = "nccl-timeout"
TIME_LIMIT = "time-limit"
GLOO_TIMEOUT = "collective-timeout"
ZEROKIT = "zerokit"
EXIT_CODE = "exit-code"
