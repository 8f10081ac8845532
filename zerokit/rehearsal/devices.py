"""The GPU that a rehearsal shows, and well-known cards as torch reports them."""

from __future__ import annotations

import types
from dataclasses import dataclass

from zerokit.errors import ZerokitError

_MIB = 2**20

_SHARED_MEMORY_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227}
"""Most shared memory of a thread block by compute capability (CUDA C++ Programming Guide, Technical
Specifications per Compute Capability)."""
_SHARED_MEMORY_OF_LATER_CARDS = 227
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536}
"""Resident threads of a multiprocessor, where it is not 2048 (same table)."""


@dataclass(frozen=True)
class VirtualDevice:
    """The GPU that the rehearsal shows. The default is an H100 SXM, as torch reports one."""

    name: str = "NVIDIA H100 80GB HBM3"
    total_bytes: int = 85_028_896_768
    """`torch.cuda.get_device_properties().total_memory`: less than the card has, by what the driver keeps."""
    capability: tuple[int, int] = (9, 0)
    """Compute capability."""
    multiprocessors: int = 132
    l2_cache_bytes: int = 50 * _MIB

    @property
    def properties(self) -> types.SimpleNamespace:
        """What torch.cuda.get_device_properties returns."""
        shared = _SHARED_MEMORY_KIB.get(self.capability, _SHARED_MEMORY_OF_LATER_CARDS) * 1024
        # From 8.0 on, a multiprocessor has 1 KiB more than a block can have: the system takes it.
        reserved = 1024 if self.capability >= (8, 0) else 0
        return types.SimpleNamespace(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.total_bytes,
            multi_processor_count=self.multiprocessors,
            is_integrated=0,
            is_multi_gpu_board=0,
            warp_size=32,
            max_threads_per_multi_processor=_THREADS.get(self.capability, 2048),
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=shared,
            shared_memory_per_multiprocessor=shared + reserved,
            L2_cache_size=self.l2_cache_bytes,
            clock_rate=1980000,
            memory_clock_rate=2619000,
            memory_bus_width=5120,
            pci_bus_id=0,
            pci_device_id=0,
            pci_domain_id=0,
            uuid="00000000-0000-0000-0000-000000000000",
            gcnArchName="",
        )


def _card(
    name: str, total_mib: int, capability: tuple[int, int], multiprocessors: int, l2_mib: int
) -> VirtualDevice:
    return VirtualDevice(name, total_mib * _MIB, capability, multiprocessors, l2_mib * _MIB)


CARDS: dict[str, VirtualDevice] = {
    "A100-40": _card("NVIDIA A100-SXM4-40GB", 40_441, (8, 0), 108, 40),
    "A100-80": _card("NVIDIA A100-SXM4-80GB", 81_153, (8, 0), 108, 40),
    "H100": VirtualDevice(),
    "H200": _card("NVIDIA H200", 143_156, (9, 0), 132, 60),
    "B200": _card("NVIDIA B200", 182_642, (10, 0), 148, 126),
    "RTX 4090": _card("NVIDIA GeForce RTX 4090", 24_217, (8, 9), 128, 72),
    "RTX 3090": _card("NVIDIA GeForce RTX 3090", 24_259, (8, 6), 82, 6),
    "L40S": _card("NVIDIA L40S", 45_589, (8, 9), 142, 96),
    "A10G": _card("NVIDIA A10G", 22_587, (8, 6), 80, 6),
    "T4": _card("Tesla T4", 15_095, (7, 5), 40, 4),
    "V100-16": _card("Tesla V100-SXM2-16GB", 16_160, (7, 0), 80, 6),
    "V100-32": _card("Tesla V100-SXM2-32GB", 32_501, (7, 0), 80, 6),
}
"""By the name that people use. Memory, as printed by torch in public logs, is of one driver: others keep up
to 0.3 % more or less. H100, H200, B200, L40S, A10G, RTX 3090, T4 and V100-16: lines
`_CudaDeviceProperties(name=...)` of torch 2.0 to 2.15 (2.15 for the A10G, 1.8 for the V100); both A100, RTX
4090 and V100-32: the first lines of Ultralytics runs ("CUDA:0 (NVIDIA A100-SXM4-80GB, 81153MiB)", torch 2.7
and later; 2.1 for the RTX 4090).
Multiprocessors and L2 caches that those do not name are of NVIDIA's architecture white papers."""


def card(name: str) -> VirtualDevice:
    """The card called `name`, whatever its case, spaces and hyphens ("rtx4090", "A100-80GB").

    Raises:
        ZerokitError: there is no such card in the table.
    """
    wanted = _plain(name)
    for known, device in CARDS.items():
        if wanted in (_plain(known), _plain(device.name)):
            return device
    raise ZerokitError(
        f"'{name}' is not a card in the table", where="--gpu", hint=f"Choose one of {', '.join(CARDS)}"
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "").replace("_", "").removesuffix("gb")
