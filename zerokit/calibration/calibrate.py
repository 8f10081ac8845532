"""Writes the measured costs as a hardware file, and compares them with the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from zerokit.calibration.measure import DTYPES, Machine, measure_machine, training_dtype
from zerokit.documents import parse_json
from zerokit.errors import ZerokitError, printable
from zerokit.files import write_file
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.hardware.hardware_file import hardware_of
from zerokit.processors import num_threads
from zerokit.units import GIB, quantity


class Comparison(NamedTuple):
    """Seconds by the file and by the catalogue."""

    what: str
    measured: float
    catalogue: float


def compare(measured: CardCosts, card: Gpu | None) -> Iterator[Comparison]:
    """Compare costs with the catalogue; of a card that it does not have, only CPU costs."""
    catalogue = CardCosts(Cluster(measured.cluster.num_gpus, gpu=card or find_gpu("H100")))
    kind = training_dtype(measured.gpu)
    dtype = DTYPES[kind]
    costs: dict[str, Callable[[CardCosts], float]] = {
        "call of a Python function": CardCosts.python_call,
        "node of autograd, made": lambda costs: costs.autograd_node("made"),
        "node of autograd, run": lambda costs: costs.autograd_node("run"),
        "view": lambda costs: costs.launch("view"),
    }
    if card is not None:
        costs |= {
            "launch of a kernel": lambda costs: costs.launch("add"),
            "Adam on the host, 10^8 parameters": lambda costs: costs.cpu_adam(10**8),
            "the same on one thread": lambda costs: costs.cpu_adam(10**8, threads=1),
            "1 GiB from the host": lambda costs: costs.copy("h2d", GIB),
            "1 GiB read and written": lambda costs: costs.memory_bound(GIB),
            f"matmul of 1024, {kind}": lambda costs: costs.matmul(1024, 1024, 1024, dtype=dtype),
            f"matmul of 4096, {kind}": lambda costs: costs.matmul(4096, 4096, 4096, dtype=dtype),
            "attention of 1024, 32 heads of 128": lambda costs: costs.attention(
                "flash_attention_2", False, 1, 32, 32, 1024, 1024, 128, True, dtype
            ),
        }
    for what, cost in costs.items():
        yield Comparison(what, cost(measured), cost(catalogue))


def calibrate(path: Path, device: str | None, ranks: int | None, threads: int | None) -> list[Comparison]:
    """Measure this machine, write the hardware file, and compare it with the catalogue.

    Args:
        ranks: None: one per card, or two on the processor.
        threads: None: all threads of the machine, shared by the ranks.

    Raises:
        ZerokitError: the file's name does not end in .json; there are fewer cards than ranks; or a measured
            value is not plausible, and nothing is written.
        LaunchError: a rank failed, or the time is up.
    """
    if path.suffix.lower() != ".json":
        raise ZerokitError("is written as JSON", where=path, hint="Name the file .json")
    cards = torch.cuda.device_count()
    device = device or ("cuda" if cards else "cpu")
    if device == "cuda" and (ranks or 1) > cards:
        raise ZerokitError(
            f"torch finds {quantity(cards, 'card')} here",
            where="--device cuda" if ranks is None else f"--ranks {ranks}",
            hint="'--device cpu' uses the processor as a card",
        )
    ranks = ranks or (cards if device == "cuda" else 2)
    machine = Machine(device, ranks, threads or num_threads(ranks))
    text = json.dumps(measure_machine(machine), indent=1) + "\n"
    # A file that `--hardware` would refuse is not written.
    hardware = hardware_of(parse_json(text, printable(path)))
    write_file(path, text, follow_links=True)
    costs = CardCosts(Cluster(ranks, gpu=hardware.gpu), hardware.figures)
    return list(compare(costs, machine.card))
