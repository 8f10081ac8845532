"""How many threads a rank has for what the host computes: CPU Adam, operators on tensors of the host."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from zerokit.choices import Launcher
from zerokit.patches import Patch, wrap
from zerokit.rehearsal.timing.rank_time import RankTime

_SET_THREADS = Patch("torch", "set_num_threads", "note how many threads the script wants")
_THREADS = "OMP_NUM_THREADS"


def threads_of_launcher(
    launcher: Launcher, local_ranks: int, environment: Mapping[str, str] = os.environ
) -> int | None:
    """The threads of a rank; None: as many as the machine has cores, however many ranks share them.

    torchrun gives each of several ranks one (torch/distributed/run.py) unless OMP_NUM_THREADS is set;
    deepspeed leaves it to OpenMP. What accelerate would set is in `environment` already.
    """
    threads = environment.get(_THREADS, "").partition(",")[0].strip()  # of nested regions the outer one
    if threads.isdecimal() and int(threads) > 0:
        return int(threads)
    return 1 if launcher == "torchrun" and local_ranks > 1 else None


def install(time: RankTime | None) -> None:
    """Have the script's own number of threads count, too.

    As many as this machine has cores are as many as the cluster's has.
    """

    def set_num_threads(really_set: Any, threads: int) -> None:
        cores = os.cpu_count() or 1
        if threads == 0 and cores < int(os.environ["LOCAL_WORLD_SIZE"]):
            threads = 1  # of cores that a script divides among ranks, this machine has too few
        really_set(threads)
        # It is of one thread alone: torch's loaders set it in those that lock their batches.
        if time is not None and threading.current_thread() is threading.main_thread():
            time.have_threads(None if threads == cores else threads)

    wrap(_SET_THREADS, set_num_threads)
