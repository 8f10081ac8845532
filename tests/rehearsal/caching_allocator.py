"""The C++ model of PyTorch's CUDA caching allocator for tests: compiled, loaded, and wrapped."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent.parent / "zerokit" / "rehearsal" / "native"
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30

OPTIONS: dict[str, tuple[Any, float]] = {  # C type and default, in the order of allocator_new
    "expandable_segments": (ctypes.c_int, 0),
    "max_split_size": (ctypes.c_int64, -1),
    "roundup_power2_divisions": (ctypes.c_int64, 0),
    "total_memory": (ctypes.c_int64, 1 << 40),
    "event_lag": (ctypes.c_int64, 1),
    "large_segment_size": (ctypes.c_int64, 20 * MB),
    "max_non_split_rounding_size": (ctypes.c_int64, -1),
}
STATES = ("inactive", "active_allocated", "active_awaiting_free")


@dataclass
class Block:
    offset: int
    size: int
    requested: int
    state: str


@dataclass
class Segment:
    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: list[Block] = field(default_factory=list)


def parse_snapshot(text: str) -> list[Segment]:
    segments: list[Segment] = []
    for line in text.splitlines():
        kind, *words = line.split()
        numbers = [int(word) for word in words]
        if kind == "segment":
            address, stream, small, expandable = numbers
            segments.append(Segment(address, 0, stream, bool(small), bool(expandable)))
        else:
            size, requested, state = numbers
            segments[-1].blocks.append(Block(segments[-1].size, size, requested, STATES[state]))
            segments[-1].size += size
    return segments


class Allocator:
    """The C++ class through ctypes; streams are small integers, sizes bytes."""

    def __init__(self, library: ctypes.CDLL, **options: float) -> None:
        assert options.keys() <= OPTIONS.keys()
        self.library = library
        self.handle = library.allocator_new(*(options.get(name, default) for name, (_, default) in OPTIONS.items()))

    def __del__(self) -> None:
        self.library.allocator_delete(self.handle)

    def allocate(self, size: int, stream: int = 0) -> int:
        return int(self.library.allocator_allocate(self.handle, size, stream))

    def release(self, *allocations: int) -> None:
        for allocation in allocations:
            self.library.allocator_release(self.handle, allocation)

    def address(self, allocation: int) -> int:
        return int(self.library.allocator_address(allocation))

    def allocated_size(self, allocation: int) -> int:
        return int(self.library.allocator_allocated_size(allocation))

    def record_stream(self, allocation: int, stream: int) -> None:
        self.library.allocator_record_stream(self.handle, allocation, stream)

    def synchronize(self) -> None:
        self.library.allocator_synchronize(self.handle)

    def empty_cache(self) -> None:
        self.library.allocator_empty_cache(self.handle)

    def reset_peak(self) -> None:
        self.library.allocator_reset_peak(self.handle)

    def stats(self) -> dict[str, int]:
        lines = self.library.allocator_stats(self.handle).decode().splitlines()
        return {name: int(value) for name, value in (line.split() for line in lines)}

    def __getitem__(self, name: str) -> int:
        """A current statistic over both pools."""
        return self.stats()[f"{name}.all.current"]

    def snapshot(self) -> list[Segment]:
        return parse_snapshot(self.library.allocator_snapshot(self.handle).decode())


def build(folder: Path) -> ctypes.CDLL:
    """Compiles the allocator and its driver into `folder` and loads them."""
    target = folder / "driver.so"
    sources = [HERE / "caching_allocator_driver.cpp", *sorted(NATIVE.glob("caching_allocator*.cpp"))]
    flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{NATIVE}"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(target)], check=True)
    loaded = ctypes.CDLL(str(target))
    for names, (result, arguments) in SIGNATURES.items():
        for name in names.split():
            function = getattr(loaded, f"allocator_{name}")
            function.restype, function.argtypes = result, arguments
    return loaded


_POINTER, _SIZE, _STREAM = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "new": (_POINTER, [c_type for c_type, _ in OPTIONS.values()]),
    "delete synchronize empty_cache reset_peak": (None, [_POINTER]),
    "allocate": (_POINTER, [_POINTER, _SIZE, _STREAM]),
    "allocated_size": (_SIZE, [_POINTER]),
    "address": (ctypes.c_uint64, [_POINTER]),
    "record_stream": (None, [_POINTER, _POINTER, _STREAM]),
    "release": (None, [_POINTER, _POINTER]),
    "stats snapshot": (ctypes.c_char_p, [_POINTER]),
}
"""Of the functions of caching_allocator_driver.cpp."""


Operation = tuple[str, int, int, int]


def trace(seed: int, steps: int, streams: int) -> Iterator[Operation]:
    """A reproducible run: (operation, number of the allocation, bytes, stream). Sizes cluster around the
    allocator's thresholds and repeat, as those of a training step do."""
    state = seed
    repeated = [7 * MB + 300, 11 * MB + 512 * KB, 33 * MB, 90 * MB + 1]

    def draw(bound: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (state >> 33) % bound

    live: list[int] = []
    for number in range(steps):
        choice = draw(100)
        if choice < 52 or not live:
            sizes = (draw(4096), draw(MB + 2000), MB + draw(11 * MB), repeated[draw(4)], draw(120 * MB))
            live.append(number)
            yield "allocate", number, sizes[draw(5)] + 1, draw(streams)
        elif choice < 60:
            yield "record_stream", live[draw(len(live))], 0, draw(streams)
        elif choice == 60:
            yield "synchronize", 0, 0, 0
        elif choice == 61 and draw(4) == 0:
            yield "empty_cache", 0, 0, 0
        else:
            yield "release", live.pop(draw(len(live))), 0, 0
    for number in live:
        yield "release", number, 0, 0
