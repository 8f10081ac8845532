"""What processes of this machine take together: collectives, over NCCL or gloo, and Adam on the host."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.calibration.kernels import adam_bytes_per_second
from zerokit.errors import LaunchError
from zerokit.files import write_file

_SMALL, _LARGE = 2**12, 2**26
"""Bytes of the largest buffer of a rank; the start of a collective is what the small one takes."""
_CALLS = 10
_TIMEOUT = 120


class Measured(NamedTuple):
    """Of all kinds of collectives together, and of Adam on all ranks at once."""

    start: float
    """Seconds of one that moves next to nothing."""
    bus: float
    """Bytes per second that a rank's link carries in a large one, as nccl-tests count them."""
    adam: float
    """Bytes per second of all ranks, which share the host's memory."""


def between(device: str, ranks: int, threads: int) -> Measured:
    """Of so many processes, each with a device of its own.

    Raises:
        LaunchError: they did not come to an end.
    """
    with tempfile.TemporaryDirectory() as folder:
        # -P: no file of this folder stands in the place of a module.
        command = [sys.executable, "-P", "-m", __name__, folder, device, *map(str, (ranks, threads, _LARGE))]
        processes = [
            subprocess.Popen([*command, str(rank)], env=os.environ | {"LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(_TIMEOUT) for process in processes]
        except subprocess.TimeoutExpired:
            codes = [1]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            raise LaunchError(
                f"{ranks} processes could not measure what they take together",
                where="zerokit calibrate",
                hint="Give --ranks 1 to leave collectives out",
            )
        words = Path(folder, "measured").read_text(encoding="utf-8").split()
        return Measured(*map(float, words))


def _main(folder: str, device: str, ranks: int, threads: int, large: int, rank: int) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    # Of the names of collectives, those that every torch has.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(threads)
    if device == "cuda":
        torch.cuda.set_device(rank)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=ranks
    )
    starts, buses = [], []
    for work, moved in _kinds(ranks).values():
        seconds = []
        for size in (_SMALL, large):
            part = torch.ones(size // 4 // ranks, device=device)
            whole = torch.ones(len(part) * ranks, device=device)
            seconds.append(_seconds(lambda work=work, whole=whole, part=part: work(whole, part), device))  # type: ignore[misc]
        starts.append(seconds[0])
        buses.append(moved * large / seconds[-1])
    adam = torch.tensor(adam_bytes_per_second(lambda update: _seconds(update, "cpu")), device=device)
    dist.all_reduce(adam)
    if rank == 0:
        text = f"{statistics.mean(starts)} {statistics.geometric_mean(buses)} {adam.item()}"
        write_file(Path(folder, "measured"), text)
    dist.destroy_process_group()


def _kinds(ranks: int) -> Mapping[str, tuple[Callable[[Any, Any], Any], float]]:
    """What each does with a whole buffer and a rank's part of it, and the share of it that a link carries."""
    import torch.distributed as dist

    share = (ranks - 1) / ranks
    return {
        "all_reduce": (lambda whole, part: dist.all_reduce(whole), 2 * share),
        "all_gather": (lambda whole, part: dist.all_gather_into_tensor(whole, part), share),
        "reduce_scatter": (lambda whole, part: dist.reduce_scatter_tensor(part, whole), share),
    }


def _seconds(work: Callable[[], Any], device: str) -> float:
    """The fastest of as many calls on each rank, which begin together: they must not stop at other times."""
    import torch
    import torch.distributed as dist

    taken = []
    for _ in range(_CALLS):
        dist.barrier()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]))
