"""Pinned memory of torch: a power of two per tensor, cached when it is freed.

Source: torch CachingHostAllocator, which keeps a block for the next request of its size. Buffers that
DeepSpeed pins itself, for NVMe, are exact (csrc/aio/py_lib/deepspeed_pin_tensor.cpp).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from zerokit.memory.term import TermKind, kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
STAGING = KINDS.STAGING


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


class PinnedMemory:
    """Pinned memory of one rank on a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._cache: Counter[int] = Counter()
        self._kinds: dict[TermKind, TermKind] = {}

    def _in_blocks(self, kind: TermKind) -> TermKind:
        """The kind in pinned memory, where each tensor is a block."""
        if kind not in self._kinds:
            count = f"{kind.count}, in blocks of a power of two"
            self._kinds[kind] = replace(kind, count=count, device="pinned")
        return self._kinds[kind]

    def pin(self, kind: TermKind, unit: int, count: int) -> None:
        """Pin a tensor: its pageable original exists until the copy is made."""
        self._timeline.hold(STAGING, unit, count)
        size = power_of_two(unit * count)
        if self._cache[size]:
            self._cache[size] -= 1
            self._timeline.free(KINDS.CACHED, size, 1)
        self._timeline.hold(self._in_blocks(kind), size, 1)
        self._timeline.free(STAGING, unit, count)

    def unpin(self, kind: TermKind, unit: int, count: int) -> None:
        """Free a tensor; torch caches its block."""
        size = power_of_two(unit * count)
        self._timeline.free(self._in_blocks(kind), size, 1)
        self._cache[size] += 1
        self._timeline.hold(KINDS.CACHED, size, 1)

    def keep(self, kind: TermKind, unit: int, count: int, *, pinned: bool) -> None:
        """Hold a tensor, in pinned memory if `pinned`."""
        if pinned:
            self.pin(kind, unit, count)
        else:
            self._timeline.hold(kind, unit, count)

    def drop(self, kind: TermKind, unit: int, count: int, *, pinned: bool) -> None:
        """Free a tensor of :meth:`keep`."""
        if pinned:
            self.unpin(kind, unit, count)
        else:
            self._timeline.free(kind, unit, count)
