"""Launches of kernels that a rehearsal does not run, whichever compiler made them.

A kernel writes into tensors that Python made before, so a launch that does nothing leaves memory as on a GPU.
What it would write is made up, and the report names the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from zerokit.rehearsal.context import rank_context
from zerokit.rehearsal.native.backend import backend
from zerokit.rehearsal.timing.rank_time import rank_time


class LaunchedKernels:
    """Which kernels were launched."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[str, bool]] = {}
        """By name, whether one of the tensors that the kernel writes is of integers."""

    def note(self, kind: str, name: str, *, writes_integers: bool) -> None:
        """Keep a launch for the report."""
        named = self._by_kind.setdefault(kind, {})
        named[name] = named.get(name, False) or writes_integers

    def warnings(self) -> list[str]:
        """A line for each kind of kernels that names those launched so far."""
        lines = []
        for kind, named in self._by_kind.items():
            integers = [name for name, writes_integers in named.items() if writes_integers]
            too = f"; integers too ({', '.join(integers)}), which no size should rest on" if integers else ""
            lines.append(f"{kind} took no memory and what they write was made up{too}: {', '.join(named)}")
        return lines


def launch(kind: str, name: str, arguments: Mapping[str, Any], written: Collection[str]) -> None:
    """Make up the results of a kernel, in the time of going through its tensors once.

    Args:
        kind: of kernel, as the report names it ("Triton kernels").
    """
    writes_integers = False
    for parameter in written:
        for tensor in tensors(arguments[parameter]):
            backend().make_up(tensor)
            writes_integers |= not tensor.is_floating_point()
    moved = sum(
        tensor.nbytes * (1 + (parameter in written))
        for parameter, argument in arguments.items()
        for tensor in tensors(argument)
    )
    note_launch(kind, name, moved, writes_integers)


def note_launch(kind: str, name: str, moved: int, writes_integers: bool) -> None:
    """Note a launch for the report; it takes the time of moving so many bytes."""
    rank_context().state(LaunchedKernels).note(kind, name, writes_integers=writes_integers)
    if time := rank_time():
        time.kernel(name, moved)


def tensors(argument: Any) -> Iterator[Any]:
    """The tensors in an argument: itself, in a tuple, or below a wrapper or descriptor."""
    if isinstance(argument, torch.Tensor):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from tensors(part)
    elif isinstance(base := getattr(argument, "base", None), torch.Tensor):
        yield base
