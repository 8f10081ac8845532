"""Measures the CPU time of Python function calls, of operators, and of autograd's nodes.

For calls, it times programs of modules, hooks, contexts and parameters, and counts their calls. The length of
a function says little about its time, so all calls count alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as trees

from zerokit.calibration.seconds import seconds_of

_OPERATORS = 200


class AutogradSeconds(NamedTuple):
    """Seconds of one."""

    view: float
    """An operator that starts nothing on the device."""
    node_made: float
    """Additional time of an operator that makes a node for the backward pass."""
    node_run: float
    """Time of a node in the backward pass, without its operators."""


def autograd_seconds() -> AutogradSeconds:
    """Measure autograd on this machine's CPU; the same code runs on the host of a GPU."""
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
    # A node of `t` calls one view, which makes no node. The difference excludes the start of a backward pass.
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
    """Seconds of one Python function call: the median of all programs."""
    return statistics.median(seconds_of(program, time.thread_time) / count_calls(program) for program in programs())


def count_calls(program: Program) -> int:
    """The number of function calls in a run of the program, after a first run."""
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
    """Programs like torch's Python code between operators, in several styles."""
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
