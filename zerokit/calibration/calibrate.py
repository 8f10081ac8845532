"""Everything that this machine takes for a training step, as a file of hardware, and beside the catalogue."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from zerokit import console
from zerokit.calibration.autograd import AutogradSeconds, autograd_seconds
from zerokit.calibration.collectives import between
from zerokit.calibration.kernels import Kernels, Product, adam_bytes_per_second
from zerokit.calibration.matmul_fit import fitted_curve, levelled
from zerokit.calibration.python import python_seconds
from zerokit.documents import parse_json, shown
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import Gpu, Link, find_gpu, gpus
from zerokit.hardware.hardware_file import BOUNDS, hardware_of
from zerokit.hardware.prices.figures import figures
from zerokit.hardware.prices.prices import Prices
from zerokit.units import GIB, MIB, quantity

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_SHARES = {"bf16": "tensor", "fp16": "tensor", "fp32": "fp32"}
"""The words of `best_share` for them."""
_AT_ONCE = 1e-8
"""Seconds of a kernel beyond its launch, where the processor that launches it is the card."""
_STEPS = 10

T = TypeVar("T")


class Machine(NamedTuple):
    """What is measured."""

    device: str
    """torch's: "cuda", or "cpu" for a processor in the place of a card."""
    ranks: int
    """Processes that collectives are measured between; 1: none are."""
    threads: int
    """Of torch in each of them."""

    @property
    def card(self) -> Gpu | None:
        """As the catalogue has it."""
        import torch

        if self.device == "cpu":
            return None
        name = torch.cuda.get_device_name(0)
        return next((gpu for gpu in gpus() if gpu.torch_name == name), None)

    @property
    def half(self) -> str:
        """What it trains in: fp16 before Ampere, whose tensor cores were the first to have bf16."""
        import torch

        if self.card is not None:
            return _half(self.card)
        return "fp16" if self.device == "cuda" and torch.cuda.get_device_capability(0) < (8, 0) else "bf16"


def _half(card: Gpu) -> str:
    return "bf16" if "bf16" in card.tflops else "fp16"


def calibrate(machine: Machine) -> dict[str, Any]:
    """Measure a machine that does nothing else meanwhile: what a file for `--hardware` holds."""
    import torch

    torch.set_num_threads(machine.threads)
    kernels = Kernels(machine.device)
    with console.progress(transient=True) as bar:
        task = bar.add_task("Measuring", total=_STEPS, note="")

        def step(what: str, work: Callable[[], T]) -> T:
            bar.update(task, note=what)
            found = work()
            bar.advance(task)
            return found

        products = {
            kind: step(f"products, {kind}", lambda dtype=_DTYPES[kind]: kernels.products(dtype))  # type: ignore[misc]
            for kind in (machine.half, "fp32")
        }
        bandwidth = step("memory", kernels.bandwidth)
        copies = step("copies", kernels.copies)
        gpu = machine.card or _card(machine, products, bandwidth, copies)
        peak = 1e12 * gpu.tflops[machine.half]
        curve = step("attention", lambda: kernels.attention(_DTYPES[machine.half], peak))
        known = {kind: rows for kind, rows in products.items() if kind in gpu.tflops}
        changes: dict[str, Any] = {
            "best_share": {
                "cards": {gpu.name: {_SHARES[kind]: _best(rows, gpu, kind) for kind, rows in known.items()}}
            },
            "memory": {
                "share": {"cards": {gpu.name: min(1.0, bandwidth / (1e9 * (gpu.bandwidth_gb_s or 1)))}},
                "passes": step("rows", kernels.passes),
                "kernel_seconds": {"value": _AT_ONCE if machine.device == "cpu" else kernels.smallest()},
            },
            "launch": {
                "seconds": {
                    "kernel": step("launches", kernels.launch),
                    "python_call": step("Python", python_seconds),
                    **_above_noise(step("autograd", autograd_seconds)),
                }
            },
        }
        if machine.ranks > 1:
            start, bus, adam = step("collectives and Adam", lambda: between(*machine))
            changes["fabric"] = {"cards": {gpu.name: {"ring": bus / 1e9}}}
            if machine.device == "cpu":
                changes["nccl"] = {"start": {"in_node": 1e6 * start}}
        else:
            adam = step("Adam", adam_bytes_per_second)
        changes["host"] = _host(machine, gpu, copies, adam)
    return {
        "gpu": gpu.name if machine.card else _written(gpu),
        "figures": changes,
        "kernels": {
            "matmul": {kind: _curve(rows, gpu, kind) for kind, rows in known.items()},
            "attention": asdict(curve),
        },
    }


def _above_noise(autograd: AutogradSeconds) -> dict[str, float]:
    """Without a difference that is lost in what it was taken of: the catalogue's stands."""
    return {what: seconds for what, seconds in autograd._asdict().items() if seconds > 0.02 * autograd.view}


def _best(rows: Sequence[Product], gpu: Gpu, kind: str) -> float:
    """Share of the card's nominal rate that any shape reached."""
    return min(1.0, max(row.rate for row in rows) / (1e12 * gpu.tflops[kind]))


def _curve(rows: Sequence[Product], gpu: Gpu, kind: str) -> dict[str, Any]:
    peak = 1e12 * gpu.tflops[kind]
    shares = [(row.layout, row.m, row.n, row.k, row.rate / peak) for row in rows]
    return asdict(levelled(fitted_curve(shares, _best(rows, gpu, kind)), shares))


def _card(
    machine: Machine,
    products: Mapping[str, Sequence[Product]],
    bandwidth: float,
    copies: Mapping[str, float],
) -> Gpu:
    """One that the catalogue does not have: the best of what was measured is its nominal rate.

    Of a rate below all cards' the least that a file may have, whose shares then tell what was measured.
    """
    import torch

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
        bandwidth_gb_s=max(bandwidth / 1e9, BOUNDS["bandwidth_gb_s"][0]),
        tflops={
            kind: max(BOUNDS["tflops"][0], *(row.rate / 1e12 for row in rows))
            for kind, rows in products.items()
        },
        host_link=Link("measured", max(copies["h2d"] / 1e9, copies["d2h"] / 1e9, BOUNDS["gb_s"][0])),
    )


def _written(gpu: Gpu) -> dict[str, Any]:
    """Without what is not known."""
    return {name: value for name, value in asdict(gpu).items() if value not in (None, (), {})}


def _host(machine: Machine, gpu: Gpu, copies: Mapping[str, float], adam: float) -> dict[str, Any]:
    """Figures of the host, with `adam` in bytes per second of all ranks of the node together."""
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


class Compared(NamedTuple):
    """Seconds of something as the file and the catalogue price it."""

    what: str
    measured: float
    catalogue: float


def compared(measured: Prices, card: Gpu | None) -> Iterator[Compared]:
    """How far the catalogue is off: of a card that it has not, only the host's work is told."""
    catalogue = Prices(Cluster(measured.cluster.num_gpus, gpu=card or find_gpu("H100")))
    kind = _half(measured.gpu)
    dtype = _DTYPES[kind]
    questions: dict[str, Callable[[Prices], float]] = {
        "call of a Python function": Prices.python_call,
        "node of autograd, made": lambda prices: prices.autograd_node("made"),
        "node of autograd, run": lambda prices: prices.autograd_node("run"),
        "view": lambda prices: prices.launch("view"),
    }
    if card is not None:
        questions |= {
            "launch of a kernel": lambda prices: prices.launch("add"),
            "Adam on the host, 10^8 parameters": lambda prices: prices.cpu_adam(10**8),
            "1 GiB from the host": lambda prices: prices.copy("h2d", GIB),
            "1 GiB read and written": lambda prices: prices.memory_bound(GIB),
            f"product of 1024, {kind}": lambda prices: prices.matmul(1024, 1024, 1024, dtype=dtype),
            f"product of 4096, {kind}": lambda prices: prices.matmul(4096, 4096, 4096, dtype=dtype),
            "attention of 1024, 32 heads of 128": lambda prices: prices.attention(
                "flash_attention_2", False, 1, 32, 32, 1024, 1024, 128, True, dtype
            ),
        }
    for what, ask in questions.items():
        yield Compared(what, ask(measured), ask(catalogue))


def calibrate_into(path: Path, device: str | None, ranks: int | None, threads: int | None) -> list[Compared]:
    """Write the file of hardware, and compare it with the catalogue.

    Args:
        path: of the file, JSON.
        device: see :class:`Machine`; None: the card if there is one.
        ranks: None: one for each card, or two processors.
        threads: None: those of the machine, shared by the ranks.

    Raises:
        ZerokitError: the file is not called JSON; there is no card, or there are fewer than ranks; or what
            was measured is beyond all machines' reach, and nothing is written.
    """
    import torch

    if path.suffix.lower() != ".json":
        raise ZerokitError("is written as JSON", where=shown(path), hint="Name the file .json")
    cards = torch.cuda.device_count()
    device = device or ("cuda" if cards else "cpu")
    if device == "cuda" and (ranks or 1) > cards:
        raise ZerokitError(
            f"torch finds {quantity(cards, 'card')} here",
            where="--device cuda" if ranks is None else f"--ranks {ranks}",
            hint="'--device cpu' has the processor in the place of a card",
        )
    ranks = ranks or (cards if device == "cuda" else 2)
    machine = Machine(device, ranks, threads or max(1, (os.cpu_count() or 1) // ranks))
    text = json.dumps(calibrate(machine), indent=1) + "\n"
    # Nobody finds a file that its reader refuses.
    hardware = hardware_of(parse_json(text, shown(path)))
    write_file(path, text)
    prices = Prices(Cluster(ranks, gpu=hardware.gpu), hardware.figures)
    return list(compared(prices, machine.card))
