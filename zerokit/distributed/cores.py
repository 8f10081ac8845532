"""Each rank of a machine on cores of its own, where the optimizer steps on them.

DeepSpeed's CPU optimizers take a thread for each core that they see. Ranks that all see all cores wait for
each other's threads; DeepSpeed's launcher divides the cores only if asked to (``--bind_cores_to_rank``), and
torchrun gives each rank one thread.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerokit.distributed.group import RankGroup

_TOPOLOGY = Path("/sys/devices/system/cpu")


def bind_to_cores(group: RankGroup) -> int | None:
    """Keep this rank, and what it starts from now on, to its share of the machine's cores.

    Left alone are ranks that somebody has bound already, which see other cores than their neighbours, and
    ranks that are more than cores. ``OMP_NUM_THREADS`` is heeded where a person has set it; torchrun sets it
    to 1 where nobody has.

    Returns:
        how many cores it has, without their second threads; None where it was left alone.
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
    _take_threads(len(own))
    return len(own)


def take_all_cores() -> None:
    """Have this rank compute by as many threads as the machine has CPUs, where nobody has said otherwise.

    In a rehearsal, where the machine stands for one whose cores nobody knows.
    """
    _take_threads(os.cpu_count() or 1)


def _take_threads(number: int) -> None:
    told = os.environ.get("OMP_NUM_THREADS")
    if told is None or (told == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        import torch

        torch.set_num_threads(number)


def share(cores: Sequence[Sequence[int]], rank: int, num_ranks: int) -> Sequence[Sequence[int]]:
    """The cores of one of `num_ranks` ranks: neighbours, so that most lie in one socket."""
    return cores[len(cores) * rank // num_ranks : len(cores) * (rank + 1) // num_ranks]


def physical_cores(cpus: Iterable[int], topology: Path = _TOPOLOGY) -> list[list[int]]:
    """Numbers of CPUs by the core that they are threads of; cores of a socket beside each other.

    Source: ``topology/`` of each CPU in sysfs; a CPU that it does not tell of is a core of its own.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        place = (-1, cpu)
        with suppress(OSError, ValueError):
            folder = topology / f"cpu{cpu}" / "topology"
            socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
            place = (socket, core)
        found.setdefault(place, []).append(cpu)
    return [found[place] for place in sorted(found)]
