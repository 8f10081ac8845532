"""The GPU that a rehearsal shows."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.units import MIB

DEFAULT = "H100"
"""The card of a rehearsal without --gpu."""

_PROPERTIES: dict[str, Any] = json.loads(
    Path(__file__).with_name("device_properties.json").read_text(encoding="utf-8")
)
"""What torch reports of cards, by compute capability where it differs (CUDA C++ Programming Guide, Technical
Specifications per Compute Capability)."""
_SHARED_MEMORY_ELSE = 227
_CARD_FIGURES = ("capability", "multiprocessors", "l2_mib")
"""What torch reports of a card, next to its name and memory."""


class DeviceProperties(types.SimpleNamespace):
    """As `torch.cuda._CudaDeviceProperties`: Dynamo takes objects of that very type for constants."""


@dataclass(frozen=True)
class VirtualDevice:
    """The GPU that the rehearsal shows, as torch reports it."""

    name: str
    total_bytes: int
    """`torch.cuda.get_device_properties().total_memory`: less than the card has, by what the driver keeps."""
    capability: tuple[int, int]
    """Compute capability."""
    multiprocessors: int
    l2_cache_bytes: int

    @property
    def properties(self) -> DeviceProperties:
        """What torch.cuda.get_device_properties returns."""
        capability = ".".join(map(str, self.capability))
        shared_kib = _PROPERTIES["shared memory of a block, KiB"].get(capability, _SHARED_MEMORY_ELSE)
        # From 8.0 on, a multiprocessor has 1 KiB more than a block can have: the system takes it.
        reserved = 1024 if self.capability >= (8, 0) else 0
        threads = _PROPERTIES["threads of a multiprocessor"].get(capability, 2048)
        return DeviceProperties(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.total_bytes,
            multi_processor_count=self.multiprocessors,
            shared_memory_per_block_optin=shared_kib * 1024,
            shared_memory_per_multiprocessor=shared_kib * 1024 + reserved,
            L2_cache_size=self.l2_cache_bytes,
            max_threads_per_multi_processor=threads,
            **_PROPERTIES["all cards"],
        )


def virtual_device(gpu: Gpu) -> VirtualDevice:
    """`gpu` as the rehearsal shows it. A card of AMD is shown as an H100 that has its memory.

    Raises:
        ZerokitError: torch.cuda knows no such card.
    """
    if gpu.platform == "rocm":
        gpu = find_gpu(DEFAULT).with_memory(gpu.memory_bytes)
    default = find_gpu(DEFAULT)
    if gpu.platform == "hpu":
        raise ZerokitError(
            f"{gpu.name} is no card of torch.cuda, and DeepSpeed takes another way on it",
            where="--gpu",
            hint="zerokit estimate says what fits into it",
        )
    # A card of a file may leave out what the catalogue has of all.
    capability, multiprocessors, l2_mib = (
        getattr(gpu, figure) or getattr(default, figure) for figure in _CARD_FIGURES
    )
    name = gpu.torch_name or gpu.name
    return VirtualDevice(name, gpu.memory_bytes, capability, multiprocessors, l2_mib * MIB)


def caveats(gpu: Gpu) -> list[str]:
    """Warnings of a report about the card itself."""
    found = [] if gpu.memory_caveat is None else [gpu.memory_caveat]
    if gpu.platform == "rocm":
        found.append(
            f"{gpu.name} is rehearsed as an {DEFAULT} with the memory of {gpu.name}: kernels and their "
            "buffers, and what drivers and RCCL take beside PyTorch's allocator, are those of CUDA"
        )
    elif missing := [figure for figure in _CARD_FIGURES if getattr(gpu, figure) is None]:
        found.append(f"{gpu.name} is shown to the script with an {DEFAULT}'s {', '.join(missing)}")
    return found
