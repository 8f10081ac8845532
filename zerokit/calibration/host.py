"""What the host spends on calls of Python functions, on operators, and on the nodes of autograd.

For calls, programs of modules, hooks, contexts and parameters are timed, and their calls counted. None trains
anything. How long a function is tells little of how long it takes, so that all count alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from zerokit.calibration.seconds import seconds_of

_OPERATORS = 200


class AutogradSeconds(NamedTuple):
    """Of one."""

    view: float
    """Of an operator that starts nothing on the device."""
    node_made: float
    """What an operator takes longer for the node that its backward pass goes through."""
    node_run: float
    """What a node costs a backward pass, besides the operators that it calls."""


def autograd_seconds() -> AutogradSeconds:
    """Of this machine: the same code runs on the host of a GPU."""
    import torch

    value = torch.ones(2, 2, requires_grad=True)

    def views(number: int) -> Any:
        result = value
        for _ in range(number):
            result = result.t()
        return result

    def thread_seconds(work: Any) -> float:
        return seconds_of(work, time.thread_time)

    with torch.no_grad():
        view = thread_seconds(lambda: views(_OPERATORS)) / _OPERATORS
    recorded = thread_seconds(lambda: views(_OPERATORS)) / _OPERATORS
    # A node of `t` calls one view, without a node of its own; the start of a backward pass drops out.
    seeds = torch.ones(2, 2)
    ends = {number: views(number) for number in (_OPERATORS, 2 * _OPERATORS)}
    backward = {
        number: thread_seconds(lambda end=end: torch.autograd.grad(end, value, seeds, retain_graph=True))
        for number, end in ends.items()
    }
    of_node = (backward[2 * _OPERATORS] - backward[_OPERATORS]) / _OPERATORS
    return AutogradSeconds(view, max(recorded - view, 0.0), max(of_node - view, 0.0))


Program = Callable[[], Any]


def python_seconds() -> float:
    """Of one call on this machine: the median of all programs."""
    return statistics.median(
        seconds_of(program, time.thread_time) / calls_of(program) for program in programs()
    )


def calls_of(program: Program) -> int:
    """How many functions it calls, each as often as it is called, after a first time."""
    program()
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        program()
    finally:
        sys.setprofile(None)
    return calls


def programs() -> list[Program]:
    """What torch's Python does between operators, in several styles."""
    import torch
    from torch.utils import _pytree as trees

    modules = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(40)))
    hooked = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(40)))
    for module in hooked:
        module.register_forward_pre_hook(lambda module, inputs: None)
        module.register_forward_hook(lambda module, inputs, output: None)
    layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(40))
    parameters = list(layers.parameters())
    optimizer = torch.optim.SGD(parameters)
    nested = {str(number): [number, {"a": (number, str(number))}] for number in range(40)}
    value = torch.ones(1)

    @contextmanager
    def context(number: int) -> Any:
        yield number

    def contexts() -> None:
        for number in range(100):
            with context(number):
                pass

    def without_gradients() -> None:
        for _ in range(100):
            with torch.no_grad():
                pass

    def is_large(parameter: Any) -> bool:
        return bool(parameter.requires_grad and parameter.numel() > 1 and parameter.dim() == 2)

    return [
        lambda: modules(value),
        lambda: hooked(value),
        contexts,
        without_gradients,
        lambda: [is_large(parameter) for parameter in parameters for _ in range(3)],
        lambda: list(layers.named_parameters()),
        lambda: [layers.train(on) for on in (True, False)],
        lambda: trees.tree_map(lambda leaf: leaf, nested),
        lambda: optimizer.state_dict(),
    ]
