"""Memory in the report of a rehearsal: of a device, of the host, of the ranks that differ.

All sizes are bytes. A figure is of one rank unless its name says ``node``. Keys are only ever added.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from zerokit.reporting.verdicts import Verdict


class Part(BaseModel):
    """Of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SiteMemory(Part):
    """What one line of code has allocated and is alive at the peak."""

    site: str
    bytes: int
    blocks: int


class BlockMemory(Part):
    """One allocation that is alive at the peak."""

    bytes: int
    shape: list[int]
    dtype: str
    name: str | None
    """The parameter it belongs to, or the key of the ds_config that sizes it."""
    site: str | None
    op: str | None
    category: str
    phase: str
    """In which it was allocated."""


class AllocatorMemory(Part):
    """What PyTorch's caching allocator would have reserved, by the model of it."""

    reserved_peak_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int
    active_peak_bytes: int
    inactive_split_peak_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_segments: int
    fragmentation_bytes: int
    """Reserved beyond what is allocated, each at its own peak."""


class DeviceMemory(Part):
    """The GPU of one rank. Allocated bytes are ``torch.cuda.memory_allocated``."""

    peak_bytes: int
    steady_bytes: int
    """Held after the last optimizer step that was asked for, or at the end if there is none."""
    reserved_peak_bytes: int
    """``torch.cuda.max_memory_reserved`` with the segments that the run asks for."""
    peak_phase: str
    peak_step: int
    """Optimizer steps completed before the peak."""
    by_phase: dict[str, int]
    """Most bytes held during each phase that occurred."""
    at_peak: dict[str, int]
    """Bytes by category at the peak."""
    sites_at_peak: list[SiteMemory]
    largest_blocks_at_peak: list[BlockMemory]
    allocator: dict[Literal["ordinary", "expandable"], AllocatorMemory]
    segments: Literal["ordinary", "expandable"]
    """Which of the two PYTORCH_CUDA_ALLOC_CONF asks for."""


class HostMemory(Part):
    """Tensors in the memory of the host; Python, libraries and page tables are not in it."""

    peak_bytes: int
    steady_bytes: int
    pinned_bytes: int
    """Most pinned bytes held; part of the above."""
    pinned_steady_bytes: int
    at_peak: dict[str, int] = Field(default_factory=dict)
    """Bytes by category at the peak, of the rank."""
    pinned_at_peak: dict[str, int] = Field(default_factory=dict)
    """What of them is pinned."""
    per_node_peak_bytes: int
    """As if all ranks of a node reached their peak together."""
    per_node_steady_bytes: int
    per_node_pinned_bytes: int


class NvmeMemory(Part):
    """Files of DeepSpeed's NVMe offload; each rank has its own."""

    per_rank_bytes: int
    per_node_bytes: int
    written_bytes: int
    """By this rank in the whole run, overwriting included."""
    read_bytes: int


class StepMemory(Part):
    """One optimizer step, from the end of the one before it to its own."""

    step: int
    """Counted from 1."""
    peak_bytes: int
    peak_phase: str
    steady_bytes: int
    """Held at its end."""
    flops: int
    communication_bytes: int


class RankMemory(Part):
    """One of the ranks that were rehearsed, where they differ."""

    rank: int
    device_peak_bytes: int
    device_steady_bytes: int
    reserved_peak_bytes: int
    peak_phase: str
    host_peak_bytes: int
    host_steady_bytes: int
    pinned_bytes: int
    verdict: Verdict


class RoleDevice(Part):
    """Device memory of a role; as of :class:`DeviceMemory`."""

    peak_bytes: int
    steady_bytes: int
    reserved_peak_bytes: int
    peak_phase: str


class RoleMemory(Part):
    """The ranks that have one role, such as a stage of a pipeline."""

    role: str
    ranks: list[int]
    rehearsed: int
    """The one of them that the figures are of."""
    device: RoleDevice
