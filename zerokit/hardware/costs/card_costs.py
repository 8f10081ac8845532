"""Costs in seconds of everything in a training step, on the GPUs of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from zerokit.errors import ZerokitError
from zerokit.hardware.costs.collectives import COLLECTIVES, Collective, Fabric, fabric
from zerokit.hardware.costs.figures import figures
from zerokit.hardware.costs.kernels import KernelCosts
from zerokit.hardware.costs.known import FP32_ALONE, Class, measured_on
from zerokit.hardware.costs.names import element_bytes, is_view
from zerokit.hardware.gpus import gpus
from zerokit.units import GIB

Copy = Literal["h2d", "d2h", "d2d", "nvme_read", "nvme_write"]
_KIND_NAMES: dict[Class, str] = {
    "matmul": "matrix products",
    "attention": "attention kernels",
    "memory_bound": "kernels bound by memory",
    "collective": "collectives",
}
"""Kinds that were measured on some cards; other cards get a note."""


@dataclass(frozen=True)
class Spread:
    """Minimum and maximum of a cost, as factors."""

    low: float
    high: float


@dataclass(frozen=True)
class CardCosts(KernelCosts):
    """Costs of kernels and all other parts of a step on a cluster. Every cost grows with every size.

    Raises:
        ZerokitError: the speed of the card is unknown.
    """

    # Between devices, and between them and the host

    def copy(self, kind: Copy, num_bytes: int, pinned: bool = True, sharing: int = 1) -> float:
        """Seconds of a copy, limited by the slower end.

        Args:
            kind: source and destination; "d2d" within one GPU.
            pinned: host memory is page-locked.
            sharing: GPUs of the node that copy at once. They share its drives, and a host link if a machine
                has one for two GPUs.
        """
        host = self.figures["host"]
        if kind == "d2d":
            return self.memory_bound(2 * num_bytes)
        if kind in ("nvme_read", "nvme_write"):
            rate = 1e9 * host["nvme_gb_s"][kind.removeprefix("nvme_")]
        else:
            sharing = min(sharing, host["gpus_of_a_link"].get(self.gpu.name, 1))
            rate = 1e9 * self._host_link_gb_s * host["pinned_share"][kind]
            rate *= 1.0 if pinned else host["pageable_share"]["value"]
        return float(host["copy_seconds"]["value"] + num_bytes * sharing / rate)

    def collective(self, kind: Collective, num_bytes: int, ranks_in_node: int, nodes: int = 1) -> float:
        """Seconds of a collective of `ranks_in_node` GPUs in each of `nodes` nodes.

        Args:
            kind: of :data:`COLLECTIVES`.
            num_bytes: of the largest buffer of a rank: the output of all_gather, the input of reduce_scatter
                and all_to_all, the buffer of others.

        Raises:
            ZerokitError: there is no such collective.
        """
        if kind not in COLLECTIVES:
            raise ZerokitError(f"there is no collective '{kind}'", hint=f"Choose one of {', '.join(COLLECTIVES)}")
        if ranks_in_node * nodes <= 1:
            # A group of one copies between its buffers, or does nothing.
            return 0.0 if kind in ("all_reduce", "broadcast", "send_recv") else self.copy("d2d", num_bytes)
        return max(self._collective_seconds(kind, num_bytes, ranks_in_node, nodes), self._kernel_seconds)

    # On the host

    def launch(self, name: str) -> float:
        """CPU seconds of an operator: arguments, dispatcher, driver."""
        return float(self.figures["launch"]["seconds"]["view" if is_view(name) else "kernel"])

    def collective_launch(self) -> float:
        """CPU seconds of a collective: bookkeeping of the group, events, NCCL and its launch."""
        return float(self.figures["launch"]["seconds"]["collective"])

    def python_call(self) -> float:
        """CPU seconds of a usual Python function call, the unit of `python_calls`."""
        return float(self.figures["launch"]["seconds"]["python_call"])

    def autograd_node(self, what: Literal["made", "run"]) -> float:
        """CPU seconds of a node of autograd's graph, without its operators."""
        return float(self.figures["launch"]["seconds"][f"node_{what}"])

    @property
    def launch_spread(self) -> Spread:
        """CPU seconds of all launches: kernels, collectives, Python and autograd."""
        return Spread(self.figures["launch"]["low"], self.figures["launch"]["high"])

    def on_host(self, bytes_moved: float, threads: int | None = None) -> float:
        """Seconds of one rank's CPU work on memory, while the node's other ranks do the same.

        Args:
            threads: of each rank, if they are too few to use the memory bandwidth; None: as many as cores.
        """
        host = self.figures["host"]
        rates = host["memory_gb_s"]
        name = None if self.gpu.host_link is None else self.gpu.host_link.name
        rate = rates.get(name, rates["others"]) * host["adam_share"]["value"]
        ranks = 1 if self.cluster.num_gpus is None else self.cluster.local_ranks
        if threads is not None:
            rate = min(rate, host["thread_gb_s"]["value"] * threads * ranks)
        return float(bytes_moved * ranks / (1e9 * rate))

    def cpu_adam(self, parameters: int, dtype: str = "float32", threads: int | None = None) -> float:
        """Seconds of DeepSpeedCPUAdam on one rank, while the node's other ranks do the same.

        It reads parameter, gradient and both moments, and writes all but the gradient: 28 bytes in fp32.

        Args:
            parameters: elements that the rank updates.
            dtype: of the gradients, and of the copied parameters.
            threads: see :meth:`on_host`.
        """
        size = element_bytes(dtype)
        return self.on_host(parameters * (24 + (4 if size == 4 else 2 * size)), threads)

    def cuda_malloc(self, num_bytes: int) -> float:
        """CPU seconds of cudaMalloc."""
        known = self.figures["host"]["cuda_malloc"]
        return float(known["seconds"] + known["seconds_per_gib"] * num_bytes / GIB)

    def cuda_free(self) -> float:
        """CPU seconds of cudaFree, without its wait for the device."""
        return float(self.figures["host"]["cuda_free"]["seconds"])

    @property
    def waits(self) -> bool:
        """Whether the CPU waits for every kernel, as if it is the card itself."""
        return self.gpu.platform == "cpu"

    @property
    def beside_collective(self) -> float:
        """Factor of kernel times while a collective runs."""
        return float(self.figures["beside_collective"]["value"])

    @property
    def beside_collective_spread(self) -> Spread:
        """Bounds of :attr:`beside_collective`."""
        known = self.figures["beside_collective"]
        return Spread(known["low"] / known["value"], known["high"] / known["value"])

    # What is known of them

    def spread(self, kind: Class) -> Spread:
        """Bounds of costs of a kind; wider if the card's own kernels were not measured, or the network is assumed."""
        known = self.figures["spread"][kind]
        what = self.measured.get(kind)
        is_guessed = kind == "collective" and self.cluster.num_nodes > 1 and self.is_network_assumed
        if what is None or what == FP32_ALONE or is_guessed:
            return Spread(*known["borrowed"])
        return Spread(*known[what if what in known else "measured"])

    @cached_property
    def measured(self) -> dict[Class, str]:
        """See :func:`measured_on`."""
        return measured_on(self.gpu, self.figures)

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """Unknown facts about the card, one line each."""
        unmeasured = [what for kind, what in _KIND_NAMES.items() if kind not in self.measured]
        if self.measured.get("matmul") == FP32_ALONE:
            unmeasured.insert(0, "matrix products in 16 bits")
        if self.cluster.num_gpus == 1 and "collectives" in unmeasured:
            unmeasured.remove("collectives")
        lines = []
        if unmeasured:
            kinds = ", ".join(unmeasured)
            lines.append(f"{kinds}: not measured on {self.gpu.name}, with times as on cards that are alike")
        if self.gpu.host_link is None:
            lines.append(f"the link of {self.gpu.name} to its host is not known: {self._host_link_gb_s:g} GB/s")
        return (*lines, *self._fabric.assumed)

    @property
    def network_gbit_s(self) -> float:
        """Between nodes, of one node."""
        return self._fabric.network_gbit_s

    @property
    def is_network_assumed(self) -> bool:
        """Whether no option and no file gives the network's speed."""
        default = figures()["fabric"]["network_gbit_s"]["value"]
        is_rented = self.gpu in gpus() and self.gpu.node is not None and bool(self.gpu.node.network_gbit_s)
        is_default = self._fabric.network_gbit_s == default
        return self.cluster.network_gbit_s is None and (is_rented or is_default)

    def with_network(self, gbit_s: float) -> CardCosts:
        """The costs with another network between nodes."""
        return replace(self, cluster=replace(self.cluster, network_gbit_s=gbit_s))

    @cached_property
    def _fabric(self) -> Fabric:
        return fabric(self.cluster, self.figures)

    @cached_property
    def _collective_seconds(self) -> Callable[[Collective, int, int, int], float]:
        return cache(self._fabric.seconds)

    @property
    def _host_link_gb_s(self) -> float:
        return 31.0 if self.gpu.host_link is None else self.gpu.host_link.gb_s
