"""Measures all costs of a training step with torch, on all ranks of this machine at the same time.

Ranks share caches, memory, clocks or a bus, so a rank alone would be faster than in a training step.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from zerokit import console
from zerokit.calibration.collectives import collectives
from zerokit.calibration.fits import compute_bound_rows, fit_matmul_curve, flatten_curve
from zerokit.calibration.host import AutogradSeconds, autograd_seconds, python_seconds
from zerokit.calibration.kernels import Kernels, Matmul, Sizes, adam_bytes_per_second, adam_bytes_per_thread
from zerokit.calibration.ranks import run_ranks
from zerokit.files import write_file
from zerokit.hardware.costs.attention import AttentionCurve
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.names import element_bytes
from zerokit.hardware.gpus import Gpu, Link, bounds, gpu_of_torch
from zerokit.stop_signals import end_with_parent
from zerokit.units import GIB, MIB

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""torch's names."""
_SHARES = {"bf16": "tensor", "fp16": "tensor", "fp32": "fp32"}
"""Keys of `best_share`."""
_AT_ONCE = 1e-8
"""Seconds of a kernel beyond its launch, if the card is the processor itself."""
_LIMIT_SECONDS = 600
"""For all measurements of all ranks."""
_WRITTEN = "measured.json"

_SIZES = {"cpu": Sizes(), "cuda": Sizes(heads=64, lengths=(512, 2048, 8192), collective=2**26)}
"""Sizes by device."""


class Machine(NamedTuple):
    """The machine to measure."""

    device: str
    """"cuda", or "cpu" for a processor used as a card."""
    ranks: int
    """Processes that work at the same time; 1: no collectives."""
    threads: int
    """torch's threads in each process."""

    @property
    def card(self) -> Gpu | None:
        """The card in the catalogue; None: unknown."""
        if self.device == "cpu":
            return None
        return gpu_of_torch(torch.cuda.get_device_name(0))

    @property
    def half(self) -> str:
        """The 16-bit dtype for training: bf16 since Ampere, fp16 on older cards."""
        if self.card is not None:
            return training_dtype(self.card)
        return "fp16" if self.device == "cuda" and torch.cuda.get_device_capability(0) < (8, 0) else "bf16"


def training_dtype(card: Gpu) -> str:
    """The 16-bit dtype in which a card of the catalogue trains, by its known rates."""
    return "bf16" if "bf16" in card.tflops else "fp16"


def measure_machine(machine: Machine, sizes: Sizes | None = None) -> dict[str, Any]:
    """Measure a machine that is otherwise idle; return the content of a file for `--hardware`.

    Raises:
        LaunchError: a rank failed, or the time is up.
    """
    sizes = sizes or _SIZES[machine.device]
    if machine.ranks == 1:
        return _measure(machine, sizes)
    with tempfile.TemporaryDirectory() as folder:
        # -P: files of the current folder replace no modules.
        command = [sys.executable, "-P", "-m", __name__, folder, *map(str, machine), json.dumps(sizes)]
        command.append(str(os.getpid()))
        run_ranks([[*command, str(rank)] for rank in range(machine.ranks)], _LIMIT_SECONDS)
        found: dict[str, Any] = json.loads(Path(folder, _WRITTEN).read_text(encoding="utf-8"))
        return found


def _main(folder: str, machine: Machine, sizes: Sizes, rank: int) -> None:
    """One rank."""
    # The names of collectives that every torch release has.
    warnings.simplefilter("ignore", FutureWarning)
    is_cuda = machine.device == "cuda"
    if is_cuda:
        torch.cuda.set_device(rank)
    rendezvous = f"file://{folder}/rendezvous"
    backend = "nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=machine.ranks)
    found = _measure(machine, sizes, is_shown=rank == 0)
    if rank == 0:
        write_file(Path(folder, _WRITTEN), json.dumps(found))
    dist.destroy_process_group()


def _measure(machine: Machine, sizes: Sizes, *, is_shown: bool = True) -> dict[str, Any]:
    """Measure on one rank, while all others do the same; a group of several ranks is initialized."""
    torch.set_num_threads(machine.threads)
    found: dict[str, Any] = {}
    steps = _steps(machine, sizes, found)
    with console.progress(transient=True, is_shown=is_shown) as bar:
        task = bar.add_task("Measuring", total=len(steps), note="")
        for what, work in steps.items():
            bar.update(task, note=what)
            found[what] = work()
            bar.advance(task)
    gpu = found["card"]
    matmuls: dict[str, Sequence[Matmul]] = {kind: found[f"matmul, {kind}"] for kind in _dtypes(machine)}
    is_cpu = machine.device == "cpu"
    start = _AT_ONCE if is_cpu else found["smallest kernel"]
    changes: dict[str, Any] = {
        "best_share": {
            "cards": {gpu.name: {_SHARES[kind]: _best_share(rows, gpu, kind) for kind, rows in matmuls.items()}}
        },
        "memory": {
            "share": {"cards": {gpu.name: min(1.0, found["memory"] / (1e9 * (gpu.bandwidth_gb_s or 1)))}},
            "passes": found["rows"],
            "kernel_seconds": {"value": start},
        },
        "launch": {
            "seconds": {"kernel": found["launches"], "python_call": found["Python"], **_above_noise(found["autograd"])}
        },
        "host": _host_figures(machine, gpu, found["copies"], found["Adam"])
        | {"thread_gb_s": {"value": found["Adam, by one thread"] / 1e9}},
    }
    if machine.ranks > 1:
        changes["launch"]["seconds"]["collective"] = found["collectives"].launch
        changes["fabric"] = _fabric_figures(gpu, machine.ranks, found["collectives"].buses)
        if is_cpu:
            changes["nccl"] = {"start": {"in_node": 1e6 * found["collectives"].start}}
    return {
        "gpu": gpu.name if machine.card else _known_fields(gpu),
        "figures": changes,
        "kernels": {
            "matmul": {kind: _curve(rows, gpu, kind, found["memory"], start) for kind, rows in matmuls.items()},
            "attention": {kind: asdict(found[f"attention, {kind}"]) for kind in matmuls},
        },
    }


def _dtypes(machine: Machine) -> list[str]:
    """The dtypes of matmuls: those with a rate in the catalogue, if it has the card."""
    kinds, card = (machine.half, "fp32"), machine.card
    return [kind for kind in kinds if card is None or kind in card.tflops]


def _steps(machine: Machine, sizes: Sizes, found: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """All measurements in order; `found` has the results of earlier ones."""
    kernels, kinds = Kernels(machine.device, machine.ranks, sizes), _dtypes(machine)

    def card() -> Gpu:
        matmuls = {kind: found[f"matmul, {kind}"] for kind in kinds}
        return machine.card or _unlisted_card(machine, matmuls, found["memory"], found["copies"])

    def attention(kind: str) -> AttentionCurve:
        gpu = found["card"]
        return kernels.attention(DTYPES[kind], 1e12 * gpu.tflops[kind], gpu.multiprocessors)

    steps: dict[str, Callable[[], Any]] = {
        **{f"matmul, {kind}": partial(kernels.matmuls, DTYPES[kind]) for kind in kinds},
        "memory": kernels.bandwidth,
        "copies": kernels.copies,
        "card": card,
        **{f"attention, {kind}": partial(attention, kind) for kind in kinds},
        "rows": kernels.passes,
        "smallest kernel": kernels.smallest_kernel,
        "launches": kernels.launch,
        "Python": python_seconds,
        "autograd": autograd_seconds,
        "Adam": partial(adam_bytes_per_second, machine.device, machine.ranks),
        "Adam, by one thread": partial(adam_bytes_per_thread, machine.device, machine.ranks),
    }
    if machine.ranks > 1:
        steps["collectives"] = partial(collectives, machine.device, machine.ranks, sizes.collective)
    return steps


def _fabric_figures(gpu: Gpu, ranks: int, buses: Mapping[str, float]) -> dict[str, Any]:
    """Figures of the links between ranks: the ring's bandwidth is that of all-gather.

    Two cards with a bridge are a pair. If all-reduce is faster than the ring, the switch reduces.
    """
    ring = buses["all_gather"]
    if ranks == 2 and gpu.link is not None and gpu.link.joins_pairs:
        reached = {"pair": ring / 1e9}
    else:
        reached = {"ring": ring / 1e9}
        if buses["all_reduce"] > ring:
            reached["switch"] = buses["all_reduce"] / 1e9
    return {
        "cards": {gpu.name: reached},
        "few_ranks": {"reached": [1.0] * len(figures()["fabric"]["few_ranks"]["reached"])},
        "kind_share": {kind: min(1.0, bus / ring) for kind, bus in buses.items()},
    }


def _above_noise(autograd: AutogradSeconds) -> dict[str, float]:
    """The figures that exceed the noise; the catalogue's value remains for others."""
    return {what: seconds for what, seconds in autograd._asdict().items() if seconds > 0.02 * autograd.view}


def _best_share(rows: Sequence[Matmul], gpu: Gpu, kind: str) -> float:
    """Share of the card's nominal rate that any shape reached."""
    return min(1.0, max(row.rate for row in rows) / (1e12 * gpu.tflops[kind]))


def _curve(rows: Sequence[Matmul], gpu: Gpu, kind: str, bytes_per_second: float, start: float) -> dict[str, Any]:
    peak = 1e12 * gpu.tflops[kind]
    measured = [(row.layout, row.m, row.n, row.k, row.rate / peak) for row in rows]
    shares = compute_bound_rows(measured, peak, bytes_per_second, start, element_bytes(DTYPES[kind]))
    return asdict(flatten_curve(fit_matmul_curve(shares, _best_share(rows, gpu, kind)), shares))


def _unlisted_card(
    machine: Machine, matmuls: Mapping[str, Sequence[Matmul]], bandwidth: float, copies: Mapping[str, float]
) -> Gpu:
    """A card that is not in the catalogue; its nominal rates are the best measured ones.

    A rate below the minimum of a hardware file becomes that minimum, and its share becomes smaller.
    """
    is_cuda = machine.device == "cuda"
    if is_cuda:
        num_bytes = torch.cuda.get_device_properties(0).total_memory
    else:
        num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Gpu(
        name=torch.cuda.get_device_name(0) if is_cuda else platform.processor() or "CPU",
        platform="cuda" if is_cuda else "cpu",
        nominal_gb=max(1, round(num_bytes / GIB)),
        memory_mib=num_bytes / MIB,
        capability=torch.cuda.get_device_capability(0) if is_cuda else None,
        multiprocessors=torch.cuda.get_device_properties(0).multi_processor_count if is_cuda else None,
        bandwidth_gb_s=max(bandwidth / 1e9, bounds()["bandwidth_gb_s"][0]),
        tflops={
            kind: max(bounds()["tflops"][0], *(row.rate / 1e12 for row in rows)) for kind, rows in matmuls.items()
        },
        host_link=Link("measured", max(copies["h2d"] / 1e9, copies["d2h"] / 1e9, bounds()["gb_s"][0])),
    )


def _known_fields(gpu: Gpu) -> dict[str, Any]:
    """The fields of a card without unknown ones."""
    return {name: value for name, value in asdict(gpu).items() if value not in (None, (), {})}


def _host_figures(machine: Machine, gpu: Gpu, copies: Mapping[str, float], adam: float) -> dict[str, Any]:
    """Figures of the host; `adam`: bytes per second of all ranks together."""
    link = 1e9 * gpu.host_link.gb_s if gpu.host_link else max(copies.values())
    found: dict[str, Any] = {
        "pinned_share": {way: min(1.0, copies[way] / link) for way in ("h2d", "d2h")},
        "pageable_share": {"value": min(1.0, copies["pageable"] / copies["h2d"])},
    }
    if machine.device == "cpu":
        found["copy_seconds"] = {"value": _AT_ONCE}
    rates = figures()["host"]["memory_gb_s"]
    memory = 1e9 * rates.get(gpu.host_link.name if gpu.host_link else None, rates["others"])
    return found | {"adam_share": {"value": min(1.0, adam / memory)}}


if __name__ == "__main__":
    folder_, device_, ranks_, threads_, sizes_, parent_, rank_ = sys.argv[1:]
    end_with_parent(int(parent_))
    _main(folder_, Machine(device_, int(ranks_), int(threads_)), Sizes(*json.loads(sizes_)), int(rank_))
