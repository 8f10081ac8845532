"""CardCosts that can be added up on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


def _free(name: str) -> Callable[..., float]:
    def cost(self: FixedCosts, *arguments: Any) -> float:
        self.asked.append((name, *arguments))
        return 0.0

    return cost


@dataclass
class FixedCosts:
    """Seconds; what is not given is free.

    Args:
        product: of each matrix product.
        by_byte: of collectives, for each byte.
        beside_collective: factor.
        copying: of each copy.
        working: of the host, for each byte that it moves.
        calling: of each call of a usual Python function, as it is when a function is first called.
        node: of each node of autograd, made or run.
        asked: which costs were asked for, with which arguments.
    """

    product: float = 0.0
    by_byte: float = 0.0
    beside_collective: float = 1.0
    copying: float = 0.0
    working: float = 0.0
    calling: float = 0.0
    node: float = 0.0
    waits: bool = False
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    gpu: Any = field(default_factory=lambda: SimpleNamespace(platform="cuda"))

    def matmul(self, *arguments: Any) -> float:
        self.asked.append(("matmul", *arguments))
        return self.product

    def collective(self, kind: Any, num_bytes: int, *ranks: int) -> float:
        self.asked.append(("collective", kind, num_bytes, *ranks))
        return self.by_byte * num_bytes

    def copy(self, *arguments: Any) -> float:
        self.asked.append(("copy", *arguments))
        return self.copying

    def on_host(self, bytes_moved: float, threads: int | None) -> float:
        self.asked.append(("on_host", bytes_moved, threads))
        return self.working * bytes_moved

    def python_call(self) -> float:
        return self.calling

    def autograd_node(self, what: str) -> float:
        return self.node

    attention = _free("attention")
    memory_bound = _free("memory_bound")
    launch = _free("launch")
    collective_launch = _free("collective_launch")
    cpu_adam = _free("cpu_adam")
    cuda_malloc = _free("cuda_malloc")
    cuda_free = _free("cuda_free")
