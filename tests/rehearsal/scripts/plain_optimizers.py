"""Trains without an engine, by a way to use torch's optimizers that is named first.

The model is four matrices of 4 MiB.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

RATE = 0.01
ROWS = 16384
"""Of what goes through the checkpointed layers: 64 MiB."""
torch.__future__.set_swap_module_params_on_conversion(True)  # which no tensor may refer to weakly
model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4)))
model.to("cuda")
parameters = list(model.parameters())
sgd = torch.optim.SGD(parameters, lr=RATE)
inputs = torch.zeros(128, 1024, device="cuda")


def forward() -> torch.Tensor:
    loss: torch.Tensor = model(inputs).square().mean()
    return loss


def checkpointed() -> None:
    """Each layer in a backward pass of its own, whose inputs are gone after it."""
    hidden = torch.zeros(ROWS, 1024, device="cuda", requires_grad=True)
    for layer in model:
        hidden = checkpoint(layer, hidden, use_reentrant=True)
    hidden.sum().backward()
    sgd.step()
    sgd.zero_grad()


class Several:
    """Two optimizers of torch's, which share a step."""

    def __init__(self) -> None:
        half = len(parameters) // 2
        self.optimizers = [
            torch.optim.AdamW(parameters[:half], fused=True),
            torch.optim.SGD(parameters[half:], lr=RATE, momentum=0.9),
        ]

    def __call__(self) -> None:
        forward().backward()
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()


class Container(torch.optim.Optimizer):
    """An optimizer of torch's by its class, whose steps are those of another in it."""

    def __init__(self) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(parameters, lr=RATE)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()

    def __call__(self) -> None:
        forward().backward()
        self.step()
        self.zero_grad()


class InBackward:
    """An optimizer for each parameter, which steps as soon as its gradient is there."""

    def __init__(self) -> None:
        for parameter in parameters:
            optimizer = torch.optim.SGD([parameter], lr=RATE)

            def step(_: torch.Tensor, optimizer: torch.optim.SGD = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)

    def __call__(self) -> None:
        forward().backward()


class Normalizing:
    """Writes weights in each forward pass, and accumulates: the optimizer of torch's tells of the steps."""

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD(parameters, lr=RATE)

    def __call__(self) -> None:
        for _ in range(4):
            with torch.no_grad():
                parameters[0].mul_(1)
            forward().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def own_update() -> None:
    """Updates parameters without an optimizer."""
    forward().backward()
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.data -= RATE * parameter.grad
        parameter.grad = None


def gradients_alone() -> None:
    """Looks at gradients, and trains nothing."""
    torch.autograd.grad(forward(), parameters)


ways = {
    "own_update": lambda: own_update,
    "gradients_alone": lambda: gradients_alone,
    "checkpointed": lambda: checkpointed,
    "several": Several,
    "container": Container,
    "in_backward": InBackward,
    "normalizing": Normalizing,
}
train = ways[sys.argv[1]]()
for iteration in range(int(sys.argv[2])):
    print(f"iteration {iteration + 1}")
    train()
