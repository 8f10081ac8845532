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
    """See that there is room for what all ranks of this node are going to share.

    DeepSpeed does not look: where there is none the ranks die of SIGBUS or SIGSEGV, without a word.

    Raises:
        LaunchError: there is too little, as in a container with Docker's default of 64 MB.
    """
    space = os.statvfs(SHARED_MEMORY)
    free = space.f_bavail * space.f_frsize
    needed = ranks.local_world_size * BYTES_PER_RANK
    if free < needed:
        raise LaunchError(
            f"has {format_bytes(free)} free, and {quantity(ranks.local_world_size, 'CPU rank')} of this node "
            f"take {format_bytes(needed)}",
            where=str(SHARED_MEMORY),
            hint="Start the container with --shm-size=1g or --ipc=host, or start fewer ranks",
        )


def release_shared_memory(ranks: Ranks, *, of_all: bool = False) -> None:
    """Remove the name of this rank's shared memory, or of all ranks'.

    DeepSpeed never does. Each run would leave 66 MiB per rank in /dev/shm, and the next one on the same port
    could meet the states that the last one left. To be called before the process group of DeepSpeed opens,
    when all ranks have it open, and when this process ends, which may be between the two; then `of_all`, for
    the launcher ends the other ranks by a signal. The memory itself lives on until they end.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    for rank in range(ranks.world_size) if of_all else (ranks.rank,):
        name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
        (SHARED_MEMORY / name).unlink(missing_ok=True)
