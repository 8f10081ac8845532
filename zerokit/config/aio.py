"""The section `aio`: asynchronous reads and writes of NVMe offload."""

from __future__ import annotations

from typing import Annotated

from zerokit.config.base import Bytes, Positive, Section
from zerokit.config.conditions import Acts

SMALLEST_FILE_BYTES = 2**20
"""Tensors below it never go to NVMe: `MIN_AIO_BYTES` in `deepspeed/runtime/swap_tensor/utils.py`."""


class Aio(Section):
    """Asynchronous I/O of NVMe offload."""

    block_size: Bytes = 1048576
    """Bytes of one read or write. Default 1 MiB."""

    queue_depth: Positive = 8
    """Requests in flight per thread. Default 8."""

    intra_op_parallelism: Annotated[Positive, Acts(since="0.16.4")] = 1
    """Threads that share one request. Default 1. Before, and in DeepSpeed's pages still, it is called
    `thread_count`, which is no longer read."""

    single_submit: bool = False
    """Submit requests one by one rather than in a batch. Default false."""

    overlap_events: bool = True
    """Submit new requests while older ones complete. Default true."""

    use_gds: Annotated[bool, Acts(since="0.15.0")] = False
    """Move data between NVMe and GPU without the host's memory (GPUDirect Storage). CUDA only. Default
    false."""
