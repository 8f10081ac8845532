"""What can be rented, and what the user has: cards, how many of them, between which networks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zerokit.errors import ZerokitError
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.gpus import Gpu, find_gpu, gpus
from zerokit.planning.candidates import Offer
from zerokit.planning.prices import CardPrice
from zerokit.units import quantity

MOST_RENTED = 64
"""GPUs, unless the user says otherwise."""
ASSUMED_NETWORKS = (100.0, 3200.0)
"""Gbit/s of a node that are tried where the user names no network: Ethernet, and 8 network cards of 400."""
_ONE_MACHINE = (1, 2, 4, 8, 16)
_NODES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of nodes that are tried."""


@dataclass(frozen=True)
class Offers:
    """All GPUs that a plan chooses from."""

    offered: tuple[Offer, ...]
    not_sold: tuple[tuple[Gpu, int, str], ...] = ()
    """Card, number and reason, for numbers that the price file has no machine for, or that are no cluster."""


def offers(
    prices: Mapping[str, CardPrice],
    *,
    names: Sequence[str] = (),
    have: str | None = None,
    max_gpus: int | None = None,
    host_bytes: int | None = None,
    network_gbit_s: float | None = None,
) -> Offers:
    """The GPUs to choose from, cards in the order of the catalogue, fewest GPUs first.

    Without `names` and `have`: all NVIDIA cards with a price.

    Args:
        prices: from :func:`zerokit.planning.prices.load_prices`.
        names: ``--gpu``: cards to rent, one or more in each, separated by commas.
        have: ``--have``: ``8xA100-40``, or ``2x8xA100-40`` for two machines. They cost nothing unless
            ``--price`` names the card. Nothing is rented unless `names` says what.
        max_gpus: ``--max-gpus``; None: all that the user has, and :data:`MOST_RENTED`.
        host_bytes: ``--host-memory``: of one machine that the user has, else of each rented one.
        network_gbit_s: ``--network``, of one node; None: several nodes at :data:`ASSUMED_NETWORKS`.

    Raises:
        ZerokitError: a card is unknown or has no price, or nothing is left.
    """
    if max_gpus is not None and max_gpus < 1:
        raise ZerokitError(f"{max_gpus} is no number of GPUs", where="--max-gpus", hint="Give 1 or more")
    found: list[Offer] = []
    not_sold: list[tuple[Gpu, int, str]] = []
    if have is not None:
        found += _own(have, prices, max_gpus, host_bytes)
        host_bytes = None
    rented = MOST_RENTED if max_gpus is None else max_gpus
    for price in _rented(names, prices, is_all=have is None):
        for number, per_node in _numbers(price.gpu, rented):
            if reason := _not_sold(price, number, per_node, network_gbit_s is not None):
                not_sold.append((price.gpu, number, reason))
                continue
            usd = price.usd_by_count.get(per_node, price.usd_per_gpu_hour)
            found.append(Offer(price.gpu, number, per_node, usd, host_bytes or price.host_bytes.get(per_node)))
    if not found:
        hint = "Raise --max-gpus, or name another card with --gpu"
        raise ZerokitError(f"nothing with at most {quantity(rented, 'GPU')} is sold", hint=hint)
    is_assumed = network_gbit_s is None
    offered = [
        offer if speed is None else replace(offer, network_gbit_s=speed, is_network_assumed=is_assumed)
        for offer in found
        for speed in ((None,) if offer.num_nodes == 1 else ASSUMED_NETWORKS if is_assumed else (network_gbit_s,))
    ]
    return Offers(tuple(offered), tuple(not_sold))


def _rented(names: Sequence[str], prices: Mapping[str, CardPrice], *, is_all: bool) -> list[CardPrice]:
    cards = [find_gpu(name.strip(), timed=True) for text in names for name in text.split(",")]
    for gpu in cards:
        if gpu.name not in prices:
            hint = f"Give --price '{gpu.name}=USD'"
            raise ZerokitError(f"there is no price of {gpu.name}", where="--gpu", hint=hint)
    if not cards and is_all:
        # The costs of kernels are those of NVIDIA's cards: others are planned only if they are named.
        cards = [g for g in gpus() if g.name in prices and g.platform == "cuda"]
    return [prices[gpu.name] for gpu in dict.fromkeys(cards)]


def _numbers(gpu: Gpu, max_gpus: int) -> Iterator[tuple[int, int]]:
    """Number of all GPUs and of those on a node: parts of a machine, and whole nodes."""
    node = gpu.node.gpus if gpu.node is not None else GPUS_PER_NODE
    yield from ((n, n) for n in sorted({*_ONE_MACHINE, node}) if n <= min(node, max_gpus))
    yield from ((n * node, node) for n in _NODES if n * node <= max_gpus)


def _not_sold(price: CardPrice, number: int, per_node: int, is_network_known: bool) -> str | None:
    """Why such a number cannot be rented."""
    gpu = price.gpu
    if price.counts and per_node not in price.counts:
        sold = ", ".join(map(str, sorted(price.counts)))
        return f"not sold with {quantity(per_node, 'GPU')} in a machine: {price.source} has {sold}"
    if number == per_node:
        return None
    if "GeForce" in (gpu.torch_name or ""):
        return "not sold as several machines with a fast network"
    switched = per_node > 1 and gpu.link is not None and not gpu.link.joins_pairs
    if not (is_network_known or switched or (gpu.node is not None and gpu.node.network_gbit_s)):
        return "not known to be sold as several machines with a fast network; --network offers them"
    return None


def _own(have: str, prices: Mapping[str, CardPrice], max_gpus: int | None, host_bytes: int | None) -> Iterator[Offer]:
    match = re.fullmatch(r"\s*(?:(\d{1,4})\s*x\s*)?(\d{1,4})\s*x\s*(\S.*?)\s*", have, re.IGNORECASE)
    if match is None or int(match[2]) == 0 or match[1] == "0":
        hint = "Write their number and the card, as in 8xA100-40, or 2x8xA100-40 for two machines"
        raise ZerokitError(f"'{have}' names no GPUs", where="--have", hint=hint)
    try:
        gpu = find_gpu(match[3], timed=True)
    except ZerokitError as error:
        raise ZerokitError(error.message, where="--have", hint=error.hint) from None
    node = max(gpu.node.gpus if gpu.node is not None else 0, GPUS_PER_NODE)
    nodes, per_node = int(match[1] or 1), int(match[2])
    if match[1] is None and per_node > node:
        if per_node % node:
            hint = f"Say how many each machine has, as in 2x{per_node // 2}x{match[3]}"
            raise ZerokitError(f"{per_node} GPUs do not fill machines of {node}", where="--have", hint=hint)
        nodes, per_node = per_node // node, node
    price = prices.get(gpu.name)
    usd = price.usd_per_gpu_hour if price and price.source == "--price" else 0.0
    # All of them, and fewer: more GPUs are not always faster across nodes.
    numbers = [(n, n) for n in sorted({*_ONE_MACHINE, per_node}) if n <= per_node]
    numbers += [(n * per_node, per_node) for n in sorted({*_NODES, nodes}) if 1 < n <= nodes]
    for number, of_node in numbers:
        if max_gpus is None or number <= max_gpus:
            yield Offer(gpu, number, of_node, usd, host_bytes)
