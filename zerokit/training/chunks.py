"""Losses of tokens by a function of their hidden states, a chunk of tokens after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

OfTokens = Callable[[Tensor, Tensor], Tensor]
"""Of hidden states, (tokens, h), and labels, (tokens,): the sum of the losses, or each of them, (tokens,)."""


def leaves(result: Tensor) -> Iterator[Tensor]:
    """The parameters that a result depends on."""
    nodes, seen = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [before for before, _ in node.next_functions]


class Sum(torch.autograd.Function):
    """A sum of losses, and its gradients with it, a chunk of tokens after the other."""

    @staticmethod
    def forward(
        ctx: Any, loss_of: OfTokens, rows: int, hidden: Tensor, labels: Tensor, *used: Tensor
    ) -> Tensor:
        """`used`: the parameters that the loss depends on, beside the hidden states."""
        is_wanted = [ctx.needs_input_grad[2], *ctx.needs_input_grad[4:]]
        of_hidden = torch.empty_like(hidden) if is_wanted[0] else None
        of_used: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk = hidden[part].detach().requires_grad_(is_wanted[0])
            with torch.set_grad_enabled(any(is_wanted)):
                loss = loss_of(chunk, labels[part])
            total += loss.detach()
            if not any(is_wanted):
                continue
            found = list(torch.autograd.grad(loss, [*([chunk] if is_wanted[0] else []), *used]))
            del loss
            if of_hidden is not None:
                of_hidden[part] = found.pop(0)
            if not of_used:
                of_used = [one.float() for one in found]
            else:
                for gradient, one in zip(of_used, found, strict=True):
                    gradient += one
        ctx.gradients = of_hidden, of_used
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, which are scaled in place: they serve once."""
        of_hidden, of_used = ctx.gradients
        del ctx.gradients
        if of_hidden is not None:
            of_hidden *= scale
        return None, None, of_hidden, None, *(gradient.mul_(scale) for gradient in of_used)


class Each(torch.autograd.Function):
    """Each of the losses, whose gradients are made in the backward pass, from the hidden states alone.

    What a loss is worth is known only then, where several make one figure.
    """

    @staticmethod
    def forward(
        ctx: Any, loss_of: OfTokens, rows: int, hidden: Tensor, labels: Tensor, *used: Tensor
    ) -> Tensor:
        """`used`: the parameters that the losses depend on, beside the hidden states."""
        ctx.save_for_backward(hidden, labels, *used)
        ctx.loss_of, ctx.rows = loss_of, rows
        device = hidden.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        return torch.cat([loss_of(hidden[part], labels[part]) for part in _parts(hidden, rows)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, worth: Tensor) -> tuple[Tensor | None, ...]:
        """`worth`: of each loss, (tokens,)."""
        hidden, labels, *used = ctx.saved_tensors
        wants_hidden, wanted = ctx.needs_input_grad[2], ctx.needs_input_grad[4:]
        used = [one for one, wants in zip(used, wanted, strict=True) if wants]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_used = [torch.zeros_like(one, dtype=torch.float32) for one in used]
        device, dtype, is_on = ctx.autocast
        for part in _parts(hidden, ctx.rows):
            chunk = hidden[part].detach().requires_grad_(wants_hidden)
            with torch.enable_grad(), torch.autocast(device, dtype, is_on):
                losses = ctx.loss_of(chunk, labels[part])
            found = list(
                torch.autograd.grad(losses, [*([chunk] if wants_hidden else []), *used], worth[part])
            )
            del losses
            if of_hidden is not None:
                of_hidden[part] = found.pop(0)
            for gradient, one in zip(of_used, found, strict=True):
                gradient += one
        rest = iter(of_used)
        return None, None, of_hidden, None, *(next(rest) if wants else None for wants in wanted)


def _parts(hidden: Tensor, rows: int) -> list[slice]:
    """At least one: of no tokens, gradients are 0, not none."""
    return [slice(start, start + rows) for start in range(0, max(len(hidden), 1), rows)]
