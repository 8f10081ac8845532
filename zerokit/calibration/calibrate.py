"""This machine's figures as a file of hardware, and beside the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from zerokit.calibration.measure import DTYPES, Machine, half_of, measured
from zerokit.documents import parse_json, printable
from zerokit.errors import ZerokitError
from zerokit.files import write_file
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.hardware.hardware_file import hardware_of
from zerokit.hardware.prices.prices import Prices
from zerokit.processors import num_threads
from zerokit.units import GIB, quantity


class Compared(NamedTuple):
    """Seconds of something as the file and the catalogue price it."""

    what: str
    measured: float
    catalogue: float


def compared(ours: Prices, card: Gpu | None) -> Iterator[Compared]:
    """How far the catalogue is off: of a card that it has not, only the host's work is told."""
    catalogue = Prices(Cluster(ours.cluster.num_gpus, gpu=card or find_gpu("H100")))
    kind = half_of(ours.gpu)
    dtype = DTYPES[kind]
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
            "the same by one thread": lambda prices: prices.cpu_adam(10**8, threads=1),
            "1 GiB from the host": lambda prices: prices.copy("h2d", GIB),
            "1 GiB read and written": lambda prices: prices.memory_bound(GIB),
            f"product of 1024, {kind}": lambda prices: prices.matmul(1024, 1024, 1024, dtype=dtype),
            f"product of 4096, {kind}": lambda prices: prices.matmul(4096, 4096, 4096, dtype=dtype),
            "attention of 1024, 32 heads of 128": lambda prices: prices.attention(
                "flash_attention_2", False, 1, 32, 32, 1024, 1024, 128, True, dtype
            ),
        }
    for what, ask in questions.items():
        yield Compared(what, ask(ours), ask(catalogue))


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
        LaunchError: the ranks did not come to an end.
    """
    import torch

    if path.suffix.lower() != ".json":
        raise ZerokitError("is written as JSON", where=printable(path), hint="Name the file .json")
    cards = torch.cuda.device_count()
    device = device or ("cuda" if cards else "cpu")
    if device == "cuda" and (ranks or 1) > cards:
        raise ZerokitError(
            f"torch finds {quantity(cards, 'card')} here",
            where="--device cuda" if ranks is None else f"--ranks {ranks}",
            hint="'--device cpu' has the processor in the place of a card",
        )
    ranks = ranks or (cards if device == "cuda" else 2)
    machine = Machine(device, ranks, threads or num_threads(ranks))
    text = json.dumps(measured(machine), indent=1) + "\n"
    # Nobody finds a file that its reader refuses.
    hardware = hardware_of(parse_json(text, printable(path)))
    write_file(path, text, follow_links=True)
    prices = Prices(Cluster(ranks, gpu=hardware.gpu), hardware.figures)
    return list(compared(prices, machine.card))
