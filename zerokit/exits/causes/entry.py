"""An entry of the table: what a line of a log means, and what to do.

An entry speaks of words that a library prints, so that it holds for any script. `{name}` in its texts is
a group of its pattern, and `{what}` all that the pattern covers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How near a line is to the cause: the smallest is told, and of those the first in the log."""

    ENDED = 0
    """The system or the scheduler says that it ended the run."""
    CAUSE = 1
    EXCEPTION = 2
    """A traceback of which nothing more is known."""
    KILLED = 3
    """A launcher saw a signal, of which the process itself could say nothing."""
    LEFT = 4
    """A launcher saw a code that a rank has chosen itself, such as by sys.exit(3)."""
    CONSEQUENCE = 5
    """What is seen where another rank has failed; or where it waits."""
    GENERAL = 6
    """What is said of every such failure, whose reason another line may tell."""
    MENTIONED = 7
    """Words of a cause in a line that is no error by its own word: a warning, or something tried again."""
    EXIT = 8
    """A launcher saw that something had failed."""


@dataclass(frozen=True)
class Cause:
    """One entry of the table."""

    name: str
    message: str
    fix: str
    patterns: tuple[re.Pattern[str], ...]
    """Each begins with plain text, for which re looks quickly."""
    weight: Weight = Weight.CAUSE


def cause(name: str, message: str, fix: str, *patterns: str, weight: Weight = Weight.CAUSE) -> Cause:
    """An entry, with its patterns as words."""
    return Cause(name, message, fix, tuple(map(re.compile, patterns)), weight)


HOST_MEMORY = (
    "Start fewer ranks per node, use fewer data loader workers or less offload, or ask for more memory; "
    "'zerokit estimate' says what the host needs"
)
RUNS_ALONE = (
    "Some line runs on some ranks alone (if rank == 0, a batch less, an expert unused): 'zerokit rehearse' "
    "names both lines"
)
STILL_RAN = (
    "some line runs on some ranks alone, which 'zerokit rehearse' names; or one takes long (a save, a slow "
    "disk): 'py-spy dump' shows its line"
)
"""Why a rank did not come to a collective that has not failed."""
REASON = r"eason\"?:\s{0,20}\"?"
"""Before the words by which Kubernetes says why, which are words of other programs, too."""

OUT_OF_MEMORY = "cuda-out-of-memory"
GPU_TAKEN = "gpu-taken"
NCCL_TIMEOUT = "nccl-timeout"
TIME_LIMIT = "time-limit"
GLOO_TIMEOUT = "collective-timeout"
ZEROKIT = "zerokit"
EXIT_CODE = "exit-code"
