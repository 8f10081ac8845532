"""Prices that can be added up on paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FixedPrices:
    """Seconds; what is not given is free.

    Args:
        product: of each matrix product.
        by_byte: of collectives, for each byte.
        beside_collective: factor.
    """

    product: float = 0.0
    by_byte: float = 0.0
    beside_collective: float = 1.0

    def matmul(self, *_: Any) -> float:
        return self.product

    def collective(self, _kind: Any, num_bytes: int, *_: Any) -> float:
        return self.by_byte * num_bytes

    def attention(self, *_: Any) -> float:
        return 0.0

    memory_bound = launch = copy = cpu_adam = cuda_malloc = attention

    def cuda_free(self) -> float:
        return 0.0
