"""The statistics that the models of torch's caching allocator keep."""

from __future__ import annotations

import enum

STATS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
"""The statistics of torch.cuda.memory_stats that the allocator model keeps, in the library's order."""
POOLS = ("all", "small_pool", "large_pool")
FIELDS = ("current", "peak", "allocated", "freed")


class Model(enum.IntEnum):
    """A model of torch's caching allocator."""

    ORDINARY = 0
    EXPANDABLE = 1
    ANSWERING = 2
    """The one of the two that `torch.cuda` answers from, by PYTORCH_CUDA_ALLOC_CONF."""
