"""The GPU that a rehearsal shows."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from zerokit.errors import ZerokitError
from zerokit.hardware.gpus import Gpu, find_gpu
from zerokit.tables import table_of
from zerokit.units import MIB

DEFAULT = "H100"
"""The card of a rehearsal without --gpu."""

_SHARED_MEMORY_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (12, 0): 99}
"""Most shared memory of a thread block by compute capability (CUDA C++ Programming Guide, Technical
Specifications per Compute Capability)."""
_DEFAULT_SHARED_MEMORY_KIB = 227
"""9.0 and 10.x."""
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
"""Most resident threads of a multiprocessor by compute capability (same source)."""
_DEFAULT_THREADS = 2048

_OF_ALL_CARDS: dict[str, Any] = table_of(__file__)
"""Properties with one value; the clocks and the bus are those of an H100."""
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
        shared_bytes = _SHARED_MEMORY_KIB.get(self.capability, _DEFAULT_SHARED_MEMORY_KIB) * 1024
        # From 8.0 on, a multiprocessor has 1 KiB more than a block can have: the system takes it.
        reserved = 1024 if self.capability >= (8, 0) else 0
        return DeviceProperties(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.total_bytes,
            multi_processor_count=self.multiprocessors,
            max_threads_per_multi_processor=_THREADS.get(self.capability, _DEFAULT_THREADS),
            shared_memory_per_block_optin=shared_bytes,
            shared_memory_per_multiprocessor=shared_bytes + reserved,
            L2_cache_size=self.l2_cache_bytes,
            **_OF_ALL_CARDS,
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
