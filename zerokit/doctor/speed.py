"""Measures how fast ranks compute alone and communicate together."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from zerokit.distributed.ranks import free_port
from zerokit.doctor.result import CheckResult, not_checked, ok
from zerokit.doctor.scripts import run_script
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.units import quantity

_PATIENCE = 180
"""Timeout in seconds for all ranks: imports, rendezvous and measurements."""
_CPU_RANKS = 2
_SLOW_GPU, _SLOW_CPU = 1.25, 3.0
"""Factor over the median of the others for a matmul: GPUs of a kind differ by a few percent, CPU cores have
other work."""
_SLOW_ALL_REDUCE = 2.0
"""Factor over the expected time."""

_WAITED = re.compile(
    "did not answer|time[sd]?[ -]?out|connect(ion)? (was )?(closed|refused|reset)|failed to connect", re.IGNORECASE
)
"""Messages of a rank that may only have waited for another one."""

_MEASURE = """
import ctypes, datetime, json, signal, socket, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the doctor, or its ssh
import torch
import torch.distributed as dist

rank, local_rank, world_size, address, patience = json.loads(sys.argv[1])
signal.alarm(patience)  # whoever started it may be gone
gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
else:
    torch.set_num_threads(1)

def seconds(action, times):
    best = float("inf")
    for _ in range(5):
        if gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            action()
        if gpu:
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / times)
    return best

side, numel = (8192, 1 << 27) if gpu else (512, 1 << 20)
matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16 if gpu else torch.float32)
alone = seconds(lambda: matrix @ matrix, 20)
buffer = torch.zeros(numel, device=device, dtype=torch.bfloat16)
wait = datetime.timedelta(seconds=patience // 3)
dist.init_process_group("nccl" if gpu else "gloo", init_method=address, rank=rank, world_size=world_size,
                        timeout=wait)
dist.all_reduce(buffer)
together = seconds(lambda: dist.all_reduce(buffer), 5)
name = torch.cuda.get_device_name(device) if gpu else ""
result = {"alone": alone, "together": together, "num_bytes": 2 * numel, "gpu": name}
print("zerokit:" + json.dumps(result), flush=True)
dist.barrier()
"""


class Measured(NamedTuple):
    alone: float
    """Seconds of a matmul while all ranks compute."""
    together: float
    """Seconds of an all-reduce of all ranks."""
    num_bytes: int
    """Size of its buffer."""
    gpu: str
    """The GPU's name in torch; empty on the CPU."""


def speed(machines: Mapping[str, int] | None, num_gpus: int, port: int) -> Iterator[CheckResult]:
    """Start a rank per GPU, measure, and judge the results.

    Args:
        machines: of a hostfile, with the ranks of each; None: only this one.
        num_gpus: of this machine; without any, two CPU ranks measure.
        port: of the rendezvous, on the first of several machines.
    """
    ranks = [
        (host, local) for host, count in (machines or {"": num_gpus or _CPU_RANKS}).items() for local in range(count)
    ]
    if len(ranks) == 1:
        yield not_checked("all-reduce", "there is one rank alone")
        return
    first = ranks[0][0] or "127.0.0.1"
    address = f"tcp://{first}:{free_port() if machines is None else port}"
    with ThreadPoolExecutor(len(ranks)) as pool:
        asked = [
            pool.submit(_ask, host, [rank, local, len(ranks), address, _PATIENCE])
            for rank, (host, local) in enumerate(ranks)
        ]
        answers = [one.result() for one in asked]
    failed = [(rank, error) for rank, error in enumerate(answers) if isinstance(error, str)]
    if failed:
        # Other ranks wait in vain for a missing rank.
        rank, error = next((one for one in failed if not _WAITED.search(one[1])), failed[0])
        fix = "Fix this rank: the others waited for it"
        if _WAITED.search(error):
            fix = f"Check that all machines know the first one as {first}, and that no firewall closes its port"
            fix += f" {port}" if machines else ""
        yield CheckResult("all-reduce", "error", f"{_rank_name(rank, ranks)}: {error}", fix)
        return
    yield from judge([answer for answer in answers if isinstance(answer, Measured)], ranks)


def judge(measured: Sequence[Measured], ranks: Sequence[tuple[str, int]]) -> Iterator[CheckResult]:
    """Judge the measurements.

    Args:
        ranks: host (empty for this machine) and local rank of each.
    """
    alone = [one.alone for one in measured]
    slow = _SLOW_GPU if measured[0].gpu else _SLOW_CPU
    usual = [median(alone[:rank] + alone[rank + 1 :]) for rank in range(len(alone))]
    late = [
        (rank, own / others)
        for rank, (own, others) in enumerate(zip(alone, usual, strict=True))
        if own > slow * others
    ]
    for rank, times in late:
        message = f"{_rank_name(rank, ranks)} takes {times:.1f} times as long as the others for a matmul"
        fix = "See its clocks, heat and power cap: nvidia-smi -q -d PERFORMANCE; and what else runs there"
        yield CheckResult("ranks", "warning", message, fix)
    if not late:
        yield ok("ranks", f"{quantity(len(ranks), 'rank')} multiply matrices equally fast")
    # The slowest rank determines the time.
    seconds, num_bytes = max(one.together for one in measured), measured[0].num_bytes
    bus = 2 * (len(ranks) - 1) / len(ranks) * num_bytes / seconds
    message = f"{bus / 1e9:.3g} GB/s on the bus of {quantity(len(ranks), 'rank')}"
    expected = _expected_seconds(measured, ranks)
    if expected is None:
        yield ok("all-reduce", f"{message}; the expected speed is not known")
        return
    message += f", and {bus * seconds / expected / 1e9:.3g} are expected"
    if seconds > _SLOW_ALL_REDUCE * expected:
        fix = "NCCL_DEBUG=INFO prints the links in use, nvidia-smi topo -m all links; see NCCL_IB_HCA"
        yield CheckResult("all-reduce", "warning", message, fix)
    else:
        yield ok("all-reduce", message)


def _expected_seconds(measured: Sequence[Measured], ranks: Sequence[tuple[str, int]]) -> float | None:
    """Expected seconds of the all-reduce on healthy hardware; None if unknown."""
    hosts = [host for host, _ in ranks]
    per_node = {hosts.count(host) for host in hosts}
    if len({one.gpu for one in measured}) > 1 or len(per_node) > 1:
        return None
    try:
        gpu = find_gpu(measured[0].gpu)
        each = per_node.pop()
        costs = CardCosts(Cluster(len(ranks), max(each, gpu.node.gpus if gpu.node else 1), gpu))
    except ZerokitError:
        return None
    return costs.collective("all_reduce", measured[0].num_bytes, each, len(set(hosts)))


def _rank_name(rank: int, ranks: Sequence[tuple[str, int]]) -> str:
    host, local = ranks[rank]
    return f"rank {rank} ({local} on {host})" if host else f"rank {rank}"


def _ask(host: str, words: list[object]) -> Measured | str:
    """The measurements of a rank, or the reason of its failure."""
    try:
        found = run_script(_MEASURE, json.dumps(words), patience=_PATIENCE + 10, host=host)
        return found.error if found.value is None else Measured(**found.value)
    except OSError as error:
        return f"{error.filename or 'it'} cannot be started here: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"did not answer in {_PATIENCE} s"
    except TypeError:
        return "its measurements have another form"
