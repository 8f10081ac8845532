"""What torch's operators and autograd's nodes cost the host, besides Python's functions."""

from __future__ import annotations

import time
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
