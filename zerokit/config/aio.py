"""The section `aio`: asynchronous reads and writes of NVMe offload."""

from __future__ import annotations

from zerokit.config.base import Positive, Section


class Aio(Section):
    """Asynchronous I/O of NVMe offload. Acts in stage 3, when a device is `nvme`."""

    block_size: Positive = 1048576
    """Bytes of one read or write. Default 1 MiB."""

    queue_depth: Positive = 8
    """Requests in flight per thread. Default 8."""

    intra_op_parallelism: Positive = 1
    """Threads that share one request. Default 1. DeepSpeed's pages call it `thread_count`, which is not
    read."""

    single_submit: bool = False
    """Submit requests one by one rather than in a batch. Default false."""

    overlap_events: bool = True
    """Submit new requests while older ones complete. Default true."""

    use_gds: bool = False
    """Move data between NVMe and GPU without the host's memory (GPUDirect Storage). CUDA only. Default
    false."""
