"""Divides a machine's cores among its ranks: each gets a share of the threads, or cores of its own.

OpenMP and DeepSpeed's CPU optimizers start a thread for each core that they see, so ranks that see all cores
wait for each other's threads.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import Ranks
from zerokit.processors import num_threads, physical_cores, within_limit

_THREADS = "OMP_NUM_THREADS"
_set_here: str | None = None
"""The number that this module has set."""


def bind_to_cores(group: RankGroup) -> int | None:
    """Bind this rank, and the processes that it starts, to its share of the machine's cores.

    Ranks that a person has bound already (they see different cores), and ranks in excess of cores, stay as
    they are.

    Returns:
        number of physical cores; None if nothing was bound.
    """
    if sys.platform != "linux":
        return None
    host, mine = socket.gethostname(), sorted(os.sched_getaffinity(0))
    # All ranks tell each other before any decides: nodes may have different numbers of ranks, in any order.
    seen = [mask for name, mask in group.gather_objects((host, mine)) if name == host]
    cores = physical_cores(mine)
    if len(seen) == 1 or len(seen) != group.ranks.local_world_size:  # or machines that have one name
        return None
    if any(other != mine for other in seen) or len(cores) < len(seen):
        return None
    own = share(cores, group.ranks.local_rank, len(seen))
    for task in Path("/proc/self/task").iterdir():  # threads that are there keep to their cores otherwise
        with suppress(OSError):  # one has ended
            os.sched_setaffinity(int(task.name), {cpu for core in own for cpu in core})
    _set_threads(within_limit(len(own), len(seen)))
    return len(own)


def use_all_cores() -> None:
    """Use as many threads as there are CPUs, unless a person has set a number; for a rehearsal."""
    _set_threads(os.cpu_count() or 1)


def share_threads(ranks: Ranks) -> None:
    """Give this rank, and the processes that it starts, its share of the machine's threads.

    A number that a person has set stays, and so does the share of a rank that its launcher has bound to
    cores.
    """
    is_bound = sys.platform == "linux" and os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    _set_threads(num_threads(1 if is_bound else ranks.local_world_size))


def _may_set_threads() -> bool:
    """Whether no person has set a number of threads; torchrun sets 1 if none is set."""
    setting = os.environ.get(_THREADS)
    of_torchrun = setting == "1" and "TORCHELASTIC_RUN_ID" in os.environ
    return (setting is None or setting == _set_here or of_torchrun) and "MKL_NUM_THREADS" not in os.environ


def _set_threads(number: int) -> None:
    global _set_here
    if _may_set_threads():
        os.environ[_THREADS] = _set_here = str(number)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(number)


def share(cores: Sequence[Sequence[int]], rank: int, num_ranks: int) -> Sequence[Sequence[int]]:
    """The cores of one rank: neighbours, so that most are in one socket."""
    return cores[len(cores) * rank // num_ranks : len(cores) * (rank + 1) // num_ranks]
