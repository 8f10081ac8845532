"""What everything that a training step does costs, in seconds, on the GPUs of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from zerokit.errors import ZerokitError
from zerokit.hardware.prices.collectives import COLLECTIVES, Collective, Fabric, fabric
from zerokit.hardware.prices.kernels import KernelPrices
from zerokit.hardware.prices.known import FP32_ALONE, Class, measured_on
from zerokit.hardware.prices.names import element_bytes, is_view
from zerokit.units import GIB

Copy = Literal["h2d", "d2h", "d2d", "nvme_read", "nvme_write"]
_SAID: dict[Class, str] = {
    "matmul": "matrix products",
    "attention": "attention kernels",
    "memory_bound": "kernels bound by memory",
    "collective": "collectives",
}
"""Kinds of prices that were measured of some cards, and of others are said not to have been."""


@dataclass(frozen=True)
class Spread:
    """Lowest and highest value of a price, as factors of it."""

    low: float
    high: float


@dataclass(frozen=True)
class Prices(KernelPrices):
    """Seconds that kernels and all else of a step take on a cluster. Every price grows with every size.

    Raises:
        ZerokitError: the speed of the card is not known.
    """

    # Between devices, and between them and the host

    def copy(self, kind: Copy, num_bytes: int, pinned: bool = True, sharing: int = 1) -> float:
        """Of a copy, by the slower end of its way.

        Args:
            kind: what is copied where; "d2d" within one GPU.
            num_bytes: of the copy.
            pinned: the memory of the host is page-locked.
            sharing: GPUs of the node that copy at once. They share its drives, and where a machine has one
                link to the host for two of them, that link.
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
        seconds: float = host["copy_seconds"]["value"] + num_bytes * sharing / rate
        return seconds

    def collective(self, kind: Collective, num_bytes: int, ranks_in_node: int, nodes: int = 1) -> float:
        """Of one collective among `ranks_in_node` GPUs of each of `nodes` nodes.

        Args:
            kind: of :data:`COLLECTIVES`.
            num_bytes: of the largest buffer of a rank: what all_gather writes, what reduce_scatter and
                all_to_all read, what the others have.
            ranks_in_node: GPUs of the group in one node.
            nodes: that the group spans.

        Raises:
            ZerokitError: there is no such collective.
        """
        if kind not in COLLECTIVES:
            raise ZerokitError(
                f"there is no collective '{kind}'", hint=f"Choose one of {', '.join(COLLECTIVES)}"
            )
        if ranks_in_node * nodes <= 1:
            # A group of one copies from one buffer to the other, or does nothing.
            return 0.0 if kind in ("all_reduce", "broadcast", "send_recv") else self.copy("d2d", num_bytes)
        return max(self._fabric.seconds(kind, num_bytes, ranks_in_node, nodes), self._kernel_seconds)

    # On the host

    def launch(self, name: str) -> float:
        """Of the host, for an operator: its arguments, the dispatcher, the driver."""
        seconds: float = self.figures["launch"]["seconds"]["view" if is_view(name) else "kernel"]
        return seconds

    def collective_launch(self) -> float:
        """Of the host, for a collective: the group's bookkeeping, events, NCCL's own work and its launch."""
        return float(self.figures["launch"]["seconds"]["collective"])

    def python_call(self, of_deepspeed: bool = False) -> float:
        """Of the host, for a call of a Python function, besides the functions and operators that it calls.

        Args:
            of_deepspeed: whether the function is DeepSpeed's, whose functions do more than others.
        """
        launch = self.figures["launch"]
        return float(launch["seconds"]["python_call"] * (launch["of_deepspeed"] if of_deepspeed else 1))

    def autograd_node(self, what: Literal["made", "run"]) -> float:
        """Of the host, for a node of autograd's graph, besides the operators that it calls."""
        return float(self.figures["launch"]["seconds"][f"node_{what}"])

    @property
    def launch_spread(self) -> Spread:
        """Of all that the host does for launching: kernels, collectives, Python and autograd."""
        return Spread(self.figures["launch"]["low"], self.figures["launch"]["high"])

    def on_host(self, bytes_moved: float, threads: int | None = None) -> float:
        """Of what one rank's processor does with its memory, with the node's other ranks beside it.

        Args:
            bytes_moved: read and written by the rank.
            threads: of each rank, where they are fewer than it takes to use the memory; None: as many as
                the machine has cores.
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
        """Of DeepSpeedCPUAdam on one rank, with the node's others beside it.

        Parameter, gradient and both moments are read, all but the gradient written: 28 bytes in fp32.

        Args:
            parameters: elements that the rank updates.
            dtype: of the gradients, and of the copy of the parameters that goes back.
            threads: as of :meth:`on_host`.
        """
        size = element_bytes(dtype)
        return self.on_host(parameters * (24 + (4 if size == 4 else 2 * size)), threads)

    def cuda_malloc(self, num_bytes: int) -> float:
        """Of the host, in cudaMalloc."""
        known = self.figures["host"]["cuda_malloc"]
        seconds: float = known["seconds"] + known["seconds_per_gib"] * num_bytes / GIB
        return seconds

    def cuda_free(self) -> float:
        """Of the host, in cudaFree, besides its wait for the device."""
        seconds: float = self.figures["host"]["cuda_free"]["seconds"]
        return seconds

    @property
    def waits(self) -> bool:
        """Whether the host waits for every kernel, as where it is the card itself."""
        return self.gpu.platform == "cpu"

    @property
    def beside_collective(self) -> float:
        """How much longer kernels take while a collective runs."""
        factor: float = self.figures["beside_collective"]["value"]
        return factor

    @property
    def beside_collective_spread(self) -> Spread:
        """Of :attr:`beside_collective`."""
        known = self.figures["beside_collective"]
        return Spread(known["low"] / known["value"], known["high"] / known["value"])

    # What is known of them

    def spread(self, kind: Class) -> Spread:
        """How far prices of a kind may be off: wider where the card's own kernels were not measured."""
        known = self.figures["spread"][kind]
        what = self.measured.get(kind)
        if what is None or what == FP32_ALONE:
            return Spread(*known["borrowed"])
        return Spread(*known[what if what in known else "measured"])

    @property
    def measured(self) -> dict[Class, str]:
        """See :func:`measured_on`."""
        return measured_on(self.gpu, self.figures)

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What was not known of the card, a line each."""
        said = [what for kind, what in _SAID.items() if kind not in self.measured]
        if self.measured.get("matmul") == FP32_ALONE:
            said.insert(0, "matrix products in 16 bits")
        if self.cluster.num_gpus == 1 and "collectives" in said:
            said.remove("collectives")
        lines = []
        if said:
            lines.append(
                f"{', '.join(said)}: not measured on {self.gpu.name}, with times as on cards that are alike"
            )
        if self.gpu.host_link is None:
            lines.append(
                f"the link of {self.gpu.name} to its host is not known: {self._host_link_gb_s:g} GB/s"
            )
        return (*lines, *self._fabric.assumed)

    @cached_property
    def _fabric(self) -> Fabric:
        return fabric(self.cluster, self.figures)

    @property
    def _host_link_gb_s(self) -> float:
        return 31.0 if self.gpu.host_link is None else self.gpu.host_link.gb_s
