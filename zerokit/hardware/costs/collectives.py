"""Seconds of collectives: NCCL's tuning model, with measured bandwidths for large messages.

Source: NVIDIA/nccl src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime. Like NCCL, it uses the
fastest algorithm (ring, tree, NVLS) and protocol (LL, LL128, Simple).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.figures import generation
from zerokit.hardware.gpus import Gpu

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv"]
COLLECTIVES = get_args(Collective)

_THROUGH_ALL = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives in which each part passes through all ranks."""

_LL, _LL128, _SIMPLE = range(3)
_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Fabric:
    """Links between the GPUs of a cluster, in bytes per second of NCCL's "bus" bandwidth."""

    ring: float
    """In one node, for rings."""
    pair: float
    """Of two GPUs with a bridge; :attr:`ring` without."""
    switch: float | None
    """Of all-reduce if the switch reduces (NVLS)."""
    network: float
    """Between nodes, for all GPUs of a node together."""
    nvlink: bool
    generation: str
    gpus_per_node: int
    figures: Mapping[str, Any]
    network_gbit_s: float
    """Of one node, as its vendor states it."""
    assumed: tuple[str, ...] = ()
    """Unknown facts, one line each."""

    def in_node(self, ranks: int) -> float:
        """Bus bandwidth of some GPUs of a node."""
        return self.pair if ranks <= 2 else self.ring

    def _of_ranks(self, ranks: int) -> float:
        """Share of the whole node's bus bandwidth for some of its GPUs behind a switch."""
        known = self.figures["fabric"]["few_ranks"]
        counts, shares = known["ranks"], known["reached"]
        right = bisect_right(counts, ranks)
        if not self.nvlink or right == len(counts):
            return 1.0
        left = max(right - 1, 0)
        way = (ranks - counts[left]) / (counts[right] - counts[left]) if right else 0.0
        return float(shares[left] + way * (shares[right] - shares[left]))

    def bus(self, ranks: int, nodes: int) -> float:
        """Bus bandwidth of a ring through some GPUs of some nodes."""
        if nodes == 1:
            return self.in_node(ranks)
        # Groups with some GPUs of each node run concurrently and share its network.
        share = self.network * min(1.0, ranks / self.gpus_per_node)
        return min(self.in_node(ranks * nodes), share)

    def seconds(self, kind: Collective, num_bytes: int, ranks: int, nodes: int) -> float:
        """Seconds of a collective of `ranks` GPUs on each of `nodes` nodes: :meth:`CardCosts.collective`."""
        seconds = self._seconds(kind, num_bytes, ranks, nodes)
        if nodes > 1 and ranks * nodes <= self.gpus_per_node:
            return max(seconds, self._seconds(kind, num_bytes, ranks * nodes, 1))
        return seconds

    def _seconds(self, kind: Collective, num_bytes: int, ranks: int, nodes: int) -> float:
        start = self.figures["nccl"]["start"]["in_node" if nodes == 1 else "between_nodes"] * _MICROSECOND
        if kind == "all_to_all":
            return float(start + self._all_to_all(num_bytes, ranks, nodes))
        return float(start + min(self._candidates(kind, num_bytes, ranks, nodes)))

    def _candidates(self, kind: Collective, num_bytes: int, ranks: int, nodes: int) -> Iterator[float]:
        for protocol in (_LL, _LL128, _SIMPLE):
            # NCCL uses LL128 only if NVLink connects all GPUs.
            if protocol == _LL128 and not self.nvlink:
                continue
            yield self._ring(kind, protocol, num_bytes, ranks, nodes)
            if kind == "all_reduce":
                yield self._tree(protocol, num_bytes, ranks, nodes)
        if kind == "all_reduce" and self.switch is not None and nodes == 1:
            total = ranks * nodes
            algorithm = self.switch * self._of_ranks(total) * total / (2 * (total - 1))
            latency = self.figures["nccl"]["switch"].get(self.generation, self.figures["nccl"]["switch"]["hopper"])
            yield latency * _MICROSECOND + num_bytes / algorithm

    def _ring(self, kind: Collective, protocol: int, num_bytes: int, ranks: int, nodes: int) -> float:
        total = ranks * nodes
        steps = {"all_reduce": 2 * (total - 1), "broadcast": total, "send_recv": 1}.get(kind, total - 1)
        rounds = 2 if kind == "all_reduce" else 1
        between = min(steps, rounds * (nodes - 1))
        reached = self.bus(ranks, nodes) * self._share(kind)
        if nodes == 1 and kind in _THROUGH_ALL:
            reached *= self._of_ranks(ranks)
        bus = self._of_protocol(protocol, reached, 0.5, 0.92)
        moved = steps if kind in _THROUGH_ALL else total
        latency = self._latency("ring", protocol, steps - between, between)
        # Rings across nodes are slower at medium sizes than in the model.
        if nodes > 1 and kind == "all_reduce" and protocol == _SIMPLE:
            latency *= 1.9 if self.generation in ("volta", "turing") else 1.4
        return latency + num_bytes * moved / total / bus

    def _tree(self, protocol: int, num_bytes: int, ranks: int, nodes: int) -> float:
        bus = 0.92 * self.bus(ranks, nodes) * self._share("all_reduce")
        bus *= self._of_ranks(ranks) if nodes == 1 else 1.0
        bus = self._of_protocol(protocol, bus, 1 / 3.8, 7 / 9 if nodes == 1 else 0.9375)
        correction: list[float] = self.figures["nccl"]["tree_correction"][protocol]
        at = min(max(0.0, math.log2(max(num_bytes, 1) / 64)), len(correction) - 1.0)
        left = min(int(at), len(correction) - 2)
        factor = correction[left] + (at - left) * (correction[left + 1] - correction[left])
        latency = self._latency("tree", protocol, 2 * (ranks - 1), 2 * math.log2(nodes))
        return latency + num_bytes / (bus * 0.5 * factor)

    def _share(self, kind: Collective) -> float:
        """Share of a ring's bandwidth: NCCL's collectives reach all of it, gloo's do not."""
        return float(self.figures["fabric"]["kind_share"].get(kind, 1.0))

    def _all_to_all(self, num_bytes: int, ranks: int, nodes: int) -> float:
        total = ranks * nodes
        share: float = self.figures["fabric"]["all_to_all_share"]["value"]
        seconds = num_bytes * (total - 1) / total / (self.in_node(total) * share)
        if nodes > 1:
            of_each = self.bus(ranks, nodes) * share / ranks
            seconds = max(seconds, num_bytes * (nodes - 1) / nodes / of_each)
        return self._latency("ring", _SIMPLE, ranks - 1, nodes - 1) + seconds

    def _of_protocol(self, protocol: int, bus: float, ll: float, ll128: float) -> float:
        if protocol == _LL:
            limits = self.figures["nccl"]["ll_max_gb_s"]
            limit: float = limits.get(self.generation, limits["ampere"])
            return min(bus * ll, 1e9 * limit)
        return bus * ll128 if protocol == _LL128 else bus

    def _latency(self, algorithm: str, protocol: int, in_node: float, between: float) -> float:
        model = self.figures["nccl"]
        inside = model["nvlink" if self.nvlink else "pcie"][algorithm][protocol]
        outside = model["network"][algorithm][protocol]
        total: float = model["base"][algorithm][protocol] + in_node * inside + between * outside
        return total * _MICROSECOND


def fabric(cluster: Cluster, known_figures: Mapping[str, Any]) -> Fabric:
    """The links of a cluster with a known card."""
    gpu = cluster.gpu or Gpu(name="a GPU")
    data = known_figures["fabric"]
    known: dict[str, Any] = data["cards"].get(gpu.name, {})
    link, host = gpu.link, gpu.host_link
    switched = link is not None and not link.joins_pairs
    assumed = []
    ring = known.get("ring")
    if ring is None and link is not None and switched:
        ring = link.gb_s * data["link_share"]["value"]
    if ring is None:
        if host is None and cluster.num_gpus != 1:
            assumed.append(f"what joins GPUs of {gpu.name} is not known: PCIe 4.0 x16")
        ring = (31.0 if host is None else host.gb_s) * data["pcie_share"]["value"]
    pair = known.get("pair")
    if pair is None:
        pair = ring if link is None or switched else max(ring, link.gb_s * data["link_share"]["value"])
    gbit = cluster.network_gbit_s
    if gbit is None and gpu.node is not None:
        gbit = gpu.node.network_gbit_s
    if gbit is None:
        gbit = data["network_gbit_s"]["value"]
        if cluster.num_gpus is None or cluster.num_gpus > cluster.gpus_per_node:
            assumed.append(f"the network between nodes is not known: {gbit} Gbit/s per node")
    switch = known.get("switch")
    return Fabric(
        ring=1e9 * ring,
        pair=1e9 * pair,
        switch=None if switch is None else 1e9 * switch,
        network=1e9 * gbit / 8 * data["network_share"]["value"],
        nvlink=switched and gpu.platform == "cuda",
        generation=generation(gpu),
        gpus_per_node=cluster.gpus_per_node,
        figures=known_figures,
        network_gbit_s=gbit,
        assumed=tuple(assumed),
    )
