"""What a plan chooses from: GPUs that are offered, and settings of DeepSpeed for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from zerokit.choices import OffloadDevice, Precision
from zerokit.hardware.cluster import DATA_PARALLEL, Cluster, Parallelism
from zerokit.hardware.gpus import Gpu
from zerokit.units import GIB

_USUAL_HOST = 64 * GIB
"""Memory for each GPU of a machine of which nothing is known: assumed, what markets of single cards list."""


@dataclass(frozen=True)
class Offer:
    """GPUs that can be rented together, or that the user has."""

    gpu: Gpu
    num_gpus: int
    """All GPUs: of one machine, or of whole nodes."""
    gpus_per_node: int
    """At most `num_gpus`."""
    usd_per_gpu_hour: float
    """0 for GPUs that the user has and names no price for."""
    host_bytes: int | None = None
    """Memory of one node, for its GPUs together; None: that of rented nodes with such cards, else
    `_USUAL_HOST`."""
    network_gbit_s: float | None = None
    """Between nodes, of one node; None on one node."""
    is_network_assumed: bool = False
    """Whether `network_gbit_s` is one of the speeds that are tried because the user named none."""

    @cached_property
    def cluster(self) -> Cluster:
        """Its machines."""
        known = Cluster(self.num_gpus, self.gpus_per_node, self.gpu, self.host_bytes, self.network_gbit_s)
        if known.known_host_bytes is not None:
            return known
        return replace(known, host_bytes=_USUAL_HOST * self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Machines."""
        return self.num_gpus // self.gpus_per_node

    @property
    def words(self) -> str:
        """``"16 x H100-SXM at 400 Gbit/s"``."""
        network = "" if self.network_gbit_s is None else f" at {self.network_gbit_s:,g} Gbit/s"
        return f"{self.num_gpus} x {self.gpu.name}{network}"


@dataclass(frozen=True)
class Candidate:
    """Settings of ZeRO and of the batch on so many GPUs, whatever the card."""

    num_gpus: int
    gpus_per_node: int
    zero_stage: int
    micro_batch_size: int
    """Sequences per forward pass on one GPU."""
    gradient_accumulation_steps: int
    """data_ranks x micro_batch_size x gradient_accumulation_steps is the global batch size."""
    offload_optimizer: OffloadDevice | None = None
    offload_param: OffloadDevice | None = None
    gradient_checkpointing: bool = False
    chunked_loss: bool = False
    hpz: bool = False
    """ZeRO++'s secondary partition: stage 3 gathers parameters within a node for the backward pass."""
    precision: Precision = "bf16"
    parallel: Parallelism = DATA_PARALLEL
    """GPUs that share sequences or layers."""
    tiled_mlp: bool = False
    activation_offloading: bool = False

    @cached_property
    def of_any_size(self) -> Candidate:
        """The same settings, whatever the batch and the 16-bit type: memory grows with these."""
        return replace(self, micro_batch_size=0, gradient_accumulation_steps=0, precision="bf16")

    @cached_property
    def of_any_pass(self) -> Candidate:
        """The same ZeRO, whatever the batch, and whatever keeps fewer activations."""
        return replace(
            self,
            micro_batch_size=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            chunked_loss=False,
            tiled_mlp=False,
            activation_offloading=False,
        )

    @property
    def data_ranks(self) -> int:
        """Groups of GPUs that read different sequences."""
        return self.parallel.data_ranks(self.num_gpus)

    @property
    def words(self) -> str:
        """``"ZeRO-2, micro batch 4, checkpointing, optimizer on the host"``."""
        words = [f"ZeRO-{self.zero_stage}", f"micro batch {self.micro_batch_size}"]
        words += [f"{name} parallelism {size}" for name, size in vars(self.parallel).items() if size > 1]
        words += ["checkpointing"] * self.gradient_checkpointing + ["chunked loss"] * self.chunked_loss
        words += ["tiled MLP"] * self.tiled_mlp + ["activations on the host"] * self.activation_offloading
        offloaded: dict[str, list[str]] = {}
        for what, device in (("optimizer", self.offload_optimizer), ("parameters", self.offload_param)):
            if device is not None:
                offloaded.setdefault("the host" if device == "cpu" else "NVMe", []).append(what)
        words += [f"{' and '.join(parts)} on {where}" for where, parts in offloaded.items()]
        return ", ".join([*words, *["hpZ"] * self.hpz])
