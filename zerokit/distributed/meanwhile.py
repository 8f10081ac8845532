"""A sum over all ranks that is exchanged while this one goes on: for gloo, whose exchanges take host time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    import torch


class Sum:
    """Of a tensor of each rank, which is changed in place."""

    def __init__(self, own: torch.Tensor) -> None:
        """Begin; all ranks do, in the same order as all else that they exchange."""
        self._tensor = own
        self._exchange = dist.all_reduce(own, async_op=True)

    def wait(self) -> torch.Tensor:
        """The sum, once it is there."""
        self._exchange.wait()
        return self._tensor
