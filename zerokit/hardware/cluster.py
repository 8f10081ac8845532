"""The machines of a run."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.errors import ZerokitError
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.gpus import Gpu
from zerokit.units import GIB, MIB, format_bytes, quantity


@dataclass(frozen=True)
class Parallelism:
    """GPUs that share their sequences: each group of ``sequence * tensor`` ranks reads the same batch.

    Groups are consecutive ranks, those of tensor parallelism innermost, as in DeepSpeed
    (``parallel_state_sp.py``, ``utils/groups.py``).

    Raises:
        ZerokitError: a size is below 1.
    """

    sequence: int = 1
    """GPUs that divide the tokens of each sequence (DeepSpeed's Ulysses)."""
    tensor: int = 1
    """GPUs that divide each layer (DeepSpeed's AutoTP)."""

    def __post_init__(self) -> None:
        for name, size in (("--sequence-parallel", self.sequence), ("--tensor-parallel", self.tensor)):
            if size < 1:
                raise ZerokitError(f"{size} is no number of GPUs", where=name, hint="Give 1 or more")

    @property
    def group_size(self) -> int:
        """Ranks that read the same batch."""
        return self.sequence * self.tensor

    def describe_data_ranks(self, ranks: int) -> str:
        """``"4 ranks"``, ``"1 group of 2 ranks"``."""
        size = self.group_size
        return quantity(ranks, "rank") if size == 1 else f"{quantity(ranks, 'group')} of {size} ranks"

    def data_ranks(self, num_gpus: int) -> int:
        """Groups that read different batches. ZerokitError if the groups do not divide the GPUs."""
        if num_gpus % self.group_size:
            kind = "sequence" if self.sequence > 1 else "tensor"
            raise ZerokitError(
                f"{'1 GPU does' if num_gpus == 1 else f'{num_gpus} GPUs do'} not divide into groups of "
                f"{self.group_size} of {kind} parallelism",
                where=f"--{kind}-parallel",
                hint=f"Use a multiple of {self.group_size} GPUs, or a size that divides {num_gpus}",
            )
        return num_gpus // self.group_size


DATA_PARALLEL = Parallelism()
"""Each GPU reads its own batch."""


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes of equal size. None: unknown.

    Raises:
        ZerokitError: a number of GPUs is below 1, or memory is below that of any machine.
    """

    num_gpus: int | None = None
    """All GPUs, one rank each."""
    gpus_per_node: int = GPUS_PER_NODE
    """A run on fewer GPUs uses one node."""
    gpu: Gpu | None = None
    host_bytes: int | None = None
    """Memory of one node."""
    network_gbit_s: float | None = None
    """Between nodes, of one node; None: that of rented nodes with such cards, or a default."""

    def __post_init__(self) -> None:
        for option, number in (("--num-gpus", self.num_gpus), ("--gpus-per-node", self.gpus_per_node)):
            if number is not None and number < 1:
                raise ZerokitError(f"{number} is no number of GPUs", where=option, hint="Give 1 or more")
        if self.host_bytes is not None and self.host_bytes < MIB:
            message = f"{format_bytes(self.host_bytes)} is no machine's memory"
            raise ZerokitError(message, where="--host-memory", hint="Write it like 1TiB")

    @property
    def world_size(self) -> int:
        """`num_gpus`, which must be known. ZerokitError if it is unknown."""
        if self.num_gpus is None:
            raise ZerokitError(
                "the number of GPUs is not known", where="--num-gpus", hint="Say how many there are in all"
            )
        return self.num_gpus

    @property
    def local_ranks(self) -> int:
        """GPUs of the run on one node."""
        return min(self.world_size, self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes of the run; see :meth:`check_nodes`."""
        self.check_nodes()
        return self.world_size // self.local_ranks

    def check_nodes(self) -> None:
        """Refuse a run that leaves GPUs of a node idle (ZerokitError)."""
        if self.num_gpus is not None and self.num_gpus % self.local_ranks:
            raise ZerokitError(
                f"{self.num_gpus} GPUs do not fill nodes of {self.gpus_per_node}",
                where="--num-gpus",
                hint="Say with --gpus-per-node how many each node has",
            )

    def check_given_nodes(self) -> None:
        """:meth:`check_nodes`, if nodes have another number of GPUs than the assumed one (ZerokitError)."""
        if self.gpus_per_node != GPUS_PER_NODE:
            self.check_nodes()

    @property
    def known_host_bytes(self) -> int | None:
        """Memory of one node: as given, else of rented nodes, in proportion to the GPUs used."""
        if self.host_bytes is not None or self.gpu is None or self.gpu.node is None:
            return self.host_bytes
        node = self.gpu.node
        gpus = self.gpus_per_node if self.num_gpus is None else self.local_ranks
        return None if node.ram_gib is None else node.ram_gib * GIB * gpus // node.gpus

    @property
    def gpu_memory_bytes(self) -> int | None:
        return None if self.gpu is None else self.gpu.memory_bytes

    def check_rank(self, rank: int) -> None:
        """Refuse a rank that does not exist (ZerokitError)."""
        if not 0 <= rank < self.world_size:
            raise ZerokitError(
                f"there is no rank {rank} among {self.num_gpus}",
                where="--rank",
                hint=f"Choose 0 to {self.world_size - 1}",
            )
