"""The sections `zero_optimization.offload_param` and `zero_optimization.offload_optimizer`."""

from __future__ import annotations

from typing import Literal

from zerokit.config.base import Fraction, NonNegative, OrAuto, Section

Device = Literal["none", "cpu", "nvme"]


class OffloadParam(Section):
    """Keep the 16-bit parameters outside the GPU. Stage 3 only; DeepSpeed ignores it below."""

    device: OrAuto[Device] = "none"
    """Where the parameters are kept: `none`, `cpu` or `nvme`. Default none (DeepSpeed's pages say cpu)."""

    nvme_path: str | None = None
    """Folder on the NVMe device; needed with `nvme`. Default none."""

    buffer_count: NonNegative = 5
    """Host buffers for reading from and writing to NVMe. Acts with `nvme`. Default 5."""

    buffer_size: NonNegative = 100_000_000
    """Elements of one such buffer; it must hold a rank's share of the largest parameter. Default 1e8."""

    max_in_cpu: NonNegative = 1_000_000_000
    """Elements kept in the host's memory although the device is `nvme`. Default 1e9."""

    pin_memory: bool = True
    """Use page-locked host memory: faster to copy from, cannot be swapped out. Default true."""


class OffloadOptimizer(Section):
    """Keep optimizer states outside the GPU and run the optimizer on the CPU. Stages 1, 2 and 3."""

    device: OrAuto[Device] = "none"
    """Where the states are kept: `none`, `cpu`, or in stage 3 `nvme`. Default none (DeepSpeed's pages say
    cpu)."""

    nvme_path: str | None = None
    """Folder on the NVMe device; needed with `nvme`. Default none."""

    buffer_count: NonNegative = 4
    """Host buffers for NVMe; at least the optimizer's tensors per parameter, 4 for Adam. Acts with
    `nvme`. Default 4."""

    pin_memory: bool = True
    """Use page-locked host memory: faster to copy from, cannot be swapped out. Default true."""

    pipeline_read: bool = False
    """Read the next tile from NVMe while this one is computed. Stage 3 with `nvme`. Default false."""

    pipeline_write: bool = False
    """Write the last tile to NVMe while this one is computed. Stage 3 with `nvme`. Default false."""

    fast_init: bool = False
    """Create the states on NVMe by a faster way. Stage 3 with `nvme`. Default false."""

    ratio: Fraction = 1.0
    """Share of the states that leaves the GPU. Below 1 in stage 3 only. Default 1."""

    super_offload: bool = False
    """Overlap the CPU's optimizer with the GPU, for hosts such as GH200. Stage 3 only. Default false."""

    cpuadam_cores_perc: Fraction = 0.8
    """Share of CPU cores for the optimizer under `super_offload`. Stage 3 only. Default 0.8."""
