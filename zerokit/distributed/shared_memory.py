"""The shared memory through which DeepSpeed's CPU ranks of one machine reduce (`csrc/cpu/comm/shm.cpp`)."""

from __future__ import annotations

import os
from pathlib import Path

from zerokit.distributed.ranks import Ranks
from zerokit.errors import LaunchError
from zerokit.units import format_bytes, quantity

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  POSIX shared memory, not a temporary file

BYTES_PER_RANK = 66 << 20
"""``struct allreduce_workspace``: two buffers of 1 MiB, two of 32 MiB, and a page of states."""


def check_shared_memory(ranks: Ranks) -> None:
    """Refuse too little shared memory for all ranks of this node, as in a container with Docker's 64 MB
    (LaunchError).

    DeepSpeed does not check: its ranks would die of SIGBUS or SIGSEGV without a message.
    """
    space = os.statvfs(SHARED_MEMORY)
    free = space.f_bavail * space.f_frsize
    needed = ranks.local_world_size * BYTES_PER_RANK
    if free < needed:
        raise LaunchError(
            f"has {format_bytes(free)} free, and {quantity(ranks.local_world_size, 'CPU rank')} of this node "
            f"take {format_bytes(needed)}",
            where=SHARED_MEMORY,
            hint="Start the container with --shm-size=1g or --ipc=host, or start fewer ranks",
        )


def release_shared_memory(ranks: Ranks, *, of_all: bool = False) -> None:
    """Remove the name of this rank's shared memory, or of all ranks'. The memory itself lasts until the ranks
    end.

    DeepSpeed never does: each run would leave 66 MiB per rank, and the next run on the same port could read
    old states. Call before DeepSpeed's process group opens, when all ranks have it open, and when this
    process ends (`of_all`, because the launcher ends the other ranks by a signal).
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    for rank in range(ranks.world_size) if of_all else (ranks.rank,):
        name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
        (SHARED_MEMORY / name).unlink(missing_ok=True)
