"""Optimizer states of tensors, including 8-bit and paged states of bitsandbytes.

Source: bitsandbytes optim/optimizer.py Optimizer2State.init_state and Optimizer8bit.get_state_buffer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zerokit.memory.model_states import ceil_div
from zerokit.memory.settings import Settings
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Timeline

_SOURCE = "bitsandbytes optim/optimizer.py"
BLOCK = 256
"""`blocksize`: elements of an 8-bit state that share one fp32 constant."""
LEAST_QUANTIZED = 4096
"""`min_8bit_size`: smaller tensors have states in fp32."""
LEAST_PAGED = 100_000
"""`get_state_buffer`: smaller tensors have no paged states."""

KINDS = kinds_of(__file__)


class OptimizerStates:
    """The optimizer states of one rank.

    Paged states are in unified memory, which torch's allocator does not count. CUDA moves pages to the GPU
    for the step, and to the host if the GPU is full. The estimate counts them on the host, and tensors too
    small for paging on the GPU.
    """

    def __init__(self, settings: Settings, count: str) -> None:
        """`count`: the formula for the elements that the rank updates."""
        self._facts, self._bytes = settings.optimizer, settings.moment_bytes
        self.moments = settings.optimizer.kind_of("MOMENTS", count)
        self._paged = replace(
            self.moments, name="paged states of the optimizer", source=f"{_SOURCE} get_state_buffer", device="pageable"
        )

    def hold(self, timeline: Timeline, tensors: Iterable[int]) -> None:
        """Hold the states of tensors with these numbers of elements on the GPU."""
        for elements in tensors:
            if self._is_quantized(elements):
                blocks = ceil_div(elements, BLOCK)
                timeline.hold(KINDS.CONSTANTS, 4, self._facts.states * blocks)
            if self._is_paged(elements):
                continue
            if self._facts.quantized and not self._is_quantized(elements):
                timeline.hold(KINDS.SMALL, 4, self._facts.states * elements)
            else:
                timeline.hold(self.moments, self._facts.states * self._bytes, elements)

    def hold_paged(self, timeline: Timeline, tensors: Iterable[int]) -> None:
        """Hold paged states, on the host."""
        paged = sum(filter(self._is_paged, tensors))
        timeline.hold(self._paged, self._facts.states * self._bytes, paged)

    def _is_paged(self, elements: int) -> bool:
        return self._facts.paged and elements >= LEAST_PAGED

    def _is_quantized(self, elements: int) -> bool:
        return self._facts.quantized and elements >= LEAST_QUANTIZED
