"""Device memory that no allocator sees: the CUDA context and the buffers of NCCL.

They depend on the driver, the card, the libraries loaded and the network, none of which a rehearsal has. They
are therefore given as a low and a high figure and called estimates.
"""

from __future__ import annotations

from zerokit.hardware.cluster import Cluster
from zerokit.hardware.non_torch_memory import (
    CUDA_CONTEXT,
    NCCL_CONNECTION,
    NCCL_FEW_CHANNELS,
    NCCL_FIRST_COMMUNICATOR_HIGH,
    NCCL_MANY_CHANNELS,
    NCCL_ONE_GPU_HIGH,
)
from zerokit.rehearsal.report.report import Overhead
from zerokit.units import GIB, MIB

_CONTEXT_SOURCE = "measured, by card and driver (ml-engineering, training/performance)"
_RING = 1
_RING_AND_TREE = 4
"""A rank receives from one neighbour in a ring and from up to three in a tree (NCCL_MAX_TREE_ARITY)."""


def overheads(cluster: Cluster, group_sizes: set[int]) -> list[Overhead]:
    """The lines to add to what the allocator reserves on each GPU.

    Args:
        cluster: of the run.
        group_sizes: sizes of the process groups that collectives were called on. Each size above 1 is
            taken for one communicator of NCCL, which holds buffers of its own.
    """
    low, high = CUDA_CONTEXT
    context = Overhead(name="CUDA context", low_bytes=low, high_bytes=high, source=_CONTEXT_SOURCE)
    return [context, _communication(cluster, group_sizes)]


def _communication(cluster: Cluster, group_sizes: set[int]) -> Overhead:
    name = "communication (NCCL)"
    if cluster.num_gpus == 1:
        source = "a single GPU has no connections; NCCL's kernels may be loaded"
        return Overhead(name=name, low_bytes=0, high_bytes=NCCL_ONE_GPU_HIGH, source=source)
    communicators = max(1, len({size for size in group_sizes if size > 1}))
    within_a_node = cluster.num_nodes == 1
    low = NCCL_FEW_CHANNELS * _RING * NCCL_CONNECTION
    each_further = NCCL_MANY_CHANNELS * (_RING if within_a_node else _RING_AND_TREE) * NCCL_CONNECTION
    first = max(NCCL_FIRST_COMMUNICATOR_HIGH, each_further)
    where = "within one node" if within_a_node else "across nodes"
    counted = f"{communicators} communicator{'s' if communicators > 1 else ''}"
    source = (
        f"{counted} {where}: low, {NCCL_FEW_CHANNELS} channels of {NCCL_CONNECTION / MIB:.1f} MiB (NCCL "
        "src/init.cc); high, 1.45 GiB measured at the first barrier (ml-engineering)"
    )
    if communicators > 1:
        source += f", and {each_further / GIB:.2f} GiB for each further communicator"
    return Overhead(
        name=name,
        low_bytes=low * communicators,
        high_bytes=first + each_further * (communicators - 1),
        source=source,
    )
