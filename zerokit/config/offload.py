"""The sections `zero_optimization.offload_param` and `zero_optimization.offload_optimizer`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from zerokit.config.base import Fraction, NonNegative, OrAuto, Reader, Section
from zerokit.config.conditions import DEVICE, FAST_INIT, NVME, SUPER_OFFLOAD, Acts

Device = Literal["none", "cpu", "nvme"]


class OffloadParam(Section):
    """Keep the 16-bit parameters outside the GPU. DeepSpeed ignores it below stage 3."""

    read_by: ClassVar[Reader] = "model"

    device: OrAuto[Device] = "none"
    """Where the parameters are kept: `none`, `cpu` or `nvme`. Default none (DeepSpeed's pages say cpu)."""

    nvme_path: Annotated[str | None, Acts(3, when=NVME)] = None
    """Folder on the NVMe device; needed with `nvme`. Default none."""

    buffer_count: Annotated[NonNegative, Acts(3, when=NVME)] = 5
    """Host buffers for reading from and writing to NVMe. Default 5."""

    buffer_size: Annotated[NonNegative, Acts(3, when=NVME)] = 100_000_000
    """Elements of one such buffer; it must hold a rank's share of the largest parameter. Default 1e8."""

    max_in_cpu: Annotated[NonNegative, Acts(3, when=NVME)] = 1_000_000_000
    """Elements kept in the host's memory although the device is `nvme`. Default 1e9."""

    pin_memory: Annotated[bool, Acts(when=DEVICE)] = True
    """Use page-locked host memory: faster to copy from, cannot be swapped out. Default true since DeepSpeed
    0.19.5, false before."""


class OffloadOptimizer(Section):
    """Keep optimizer states outside the GPU and run the optimizer on the CPU."""

    read_by: ClassVar[Reader] = "model"

    device: OrAuto[Device] = "none"
    """Where the states are kept: `none`, `cpu`, or in stage 3 `nvme`. Default none (DeepSpeed's pages say
    cpu)."""

    nvme_path: Annotated[str | None, Acts(3, when=NVME)] = None
    """Folder on the NVMe device; needed with `nvme`. Default none."""

    buffer_count: Annotated[NonNegative, Acts(3, when=NVME)] = 4
    """Host buffers for NVMe; at least the optimizer's tensors per parameter, 4 for Adam. Default 4."""

    pin_memory: Annotated[bool, Acts(when=DEVICE)] = True
    """Use page-locked host memory: faster to copy from, cannot be swapped out. Default true since DeepSpeed
    0.19.5, false before."""

    pipeline_read: Annotated[bool, Acts(3, when=NVME)] = False
    """Read the next tile from NVMe while this one is computed. Default false."""

    pipeline_write: Annotated[bool, Acts(3, when=NVME)] = False
    """Write the last tile to NVMe while this one is computed. Default false."""

    fast_init: Annotated[bool, Acts(3, when=FAST_INIT)] = False
    """Create the states on NVMe by a faster way. Default false."""

    ratio: Annotated[Fraction, Acts(3, when=DEVICE)] = 1.0
    """Share of the states that leaves the GPU. Below 1 it needs stage 3. Default 1."""

    super_offload: Annotated[bool, Acts(3, since="0.18.0")] = False
    """Overlap the CPU's optimizer with the GPU, for hosts such as GH200. Default false."""

    cpuadam_cores_perc: Annotated[Fraction, Acts(3, when=SUPER_OFFLOAD, since="0.18.0")] = 0.8
    """Share of CPU cores for the optimizer. Default 0.8."""
