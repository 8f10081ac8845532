"""Recomputation of activation checkpointing in backward passes."""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend

_BEGIN = Patch("torch.autograd.grad_mode:enable_grad", "__enter__", "see what checkpointing computes again")
_END = Patch("torch.autograd.grad_mode:enable_grad", "__exit__", "see what checkpointing computes again")


class Recomputing:
    """Counts the floating-point operations of a backward pass that a forward pass has done before.

    Autograd is off in a backward pass, and checkpointing of whichever library turns it on. A Function inside
    turns it off again for its own forward, so that a matmul cannot show it: ZeRO-3's linear layer is one.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.flops = 0.0
        self._outermost: Any = None
        self._before = 0.0

    def install(self) -> None:
        """Follow torch's switch."""
        wrap(_BEGIN, self._begin)
        wrap(_END, self._end)

    def _begin(self, enter: Any, context: Any) -> None:
        enter(context)
        if self._outermost is None and self._backend.phase == "backward" and not context.prev:
            self._outermost, self._before = context, self._backend.flops

    def _end(self, leave: Any, context: Any, *raised: Any) -> None:
        leave(context, *raised)
        if context is self._outermost:
            self.flops += self._backend.flops - self._before
            self._outermost = None
