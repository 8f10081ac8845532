"""Helpers of stand-ins that compute: float32 constants, pieces of tensors, uncounted temporaries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

import torch

from zerokit.errors import LaunchError
from zerokit.rehearsal.native import backend

CHUNK_ELEMENTS = 1 << 20
"""Elements worked on at a time: the temporaries of one piece stay at a few MiB of real memory."""


def float32(value: float) -> float:
    """`value` as a C ``float`` holds it. Raises TypeError if it is no number, as the compiled ops do."""
    return ctypes.c_float(value).value


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Matching views of at most `CHUNK_ELEMENTS` elements; tensors that are not contiguous come whole."""
    if all(tensor.is_contiguous() for tensor in tensors):
        flat = [torch.split(tensor.detach().view(-1), CHUNK_ELEMENTS) for tensor in tensors]
        yield from zip(*flat, strict=True)
    else:
        yield tuple(tensor.detach() for tensor in tensors)


@contextmanager
def kernel() -> Iterator[None]:
    """Run arithmetic as one fused kernel: no autograd, and uncounted temporaries."""
    with torch.no_grad(), _uncounted():
        yield


def _uncounted() -> AbstractContextManager[None]:
    try:
        return backend.uncounted()
    except LaunchError:  # plain torch: nothing is counted in the first place
        return nullcontext()


def stand_in_module(name: str, **members: Callable[..., object] | object) -> ModuleType:
    """A module with `members`, for `OpBuilder._loaded_ops`; without ``__file__``, so it is not loaded."""
    module = ModuleType(name, "Stands in for a compiled extension.")
    module.__dict__.update(members)
    return module
