"""How fast a machine is at the moment: ``torchrun --nproc-per-node 2 -m tests.calibration.pace``.

Machines that others share are not equally fast all the time, which no calibration can know. All ranks do a
fixed amount of work at once, and the first prints the seconds that one part of each kind takes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_TIMES = 15


def _python() -> None:
    total = 0
    for number in range(400_000):
        total += number * number


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    square, wide = torch.ones(768, 768), torch.ones(2**23)
    kinds: list[Callable[[], object]] = [lambda: square @ square, lambda: wide.mul_(1.0), _python]
    seconds = []
    for kind in kinds:
        taken = []
        for _ in range(_TIMES):
            dist.barrier()
            start = time.perf_counter()
            kind()
            taken.append(time.perf_counter() - start)
        mine = torch.tensor(statistics.median(taken))
        dist.all_reduce(mine)
        seconds.append(float(mine) / dist.get_world_size())
    if dist.get_rank() == 0:
        print("seconds", json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
