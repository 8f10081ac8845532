"""What values of C++ are in Python, besides numbers, strings and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError


class Thrown(Exception):  # noqa: N818 - C++ throws it
    """What the source, or torch where the source calls it, raises on a GPU as well."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Opaque(NamedTuple):
    """A value that is not followed, such as a stream. Nothing may rest on it."""

    what: str


class Pointer(NamedTuple):
    """To what a tensor holds."""

    tensor: Tensor
    is_read: bool = False
    """To const."""
    is_moved: bool = False
    """Not to its first element."""

    def is_null(self) -> bool:
        """torch gives none for a tensor of no elements."""
        return not self.is_moved and self.tensor.numel() == 0

    def address(self) -> int:
        if self.is_moved:
            raise UnreadError("where a pointer into a tensor leads")
        return 0 if self.is_null() else self.tensor.data_ptr()


class Present(NamedTuple):
    """An optional that has a value; one that has none is None."""

    value: Any


class Held(Protocol):
    """A variable, or an element of a vector."""

    value: Any

    def set(self, value: Any) -> Any: ...


class Address(NamedTuple):
    """That of a variable."""

    of: Held


class Guard(NamedTuple):
    """What an object sets for as long as it lives."""

    begin: Callable[[], AbstractContextManager[Any]]


class TensorType(NamedTuple):
    """What ``Tensor::type`` gives."""

    dtype: torch.dtype
    is_cuda: bool


class Vector(list[Any]):
    """A ``std::vector``, which is copied where C++ copies it; plain lists are views and lists in braces.

    Args:
        element: the type of its elements.
    """

    def __init__(self, element: str, values: Iterable[Any] = ()) -> None:
        super().__init__(values)
        self.element = element


class Options:
    """`torch::TensorOptions`."""

    def __init__(self, **given: Any) -> None:
        self.given = {key: value for key, value in given.items() if value is not None}

    def _with(self, **given: Any) -> Options:
        return Options(**{**self.given, **given})

    def dtype(self, dtype: Any = None) -> Any:
        return self.given.get("dtype") if dtype is None else self._with(dtype=dtype)

    def device(self, device: Any = None, index: int | None = None) -> Any:
        if device is None:
            return self.given.get("device")
        return self._with(device=device if index is None else torch.device(device, index))

    def layout(self, layout: Any) -> Options:
        return self._with(layout=layout)

    def requires_grad(self, required: bool = True) -> Options:
        return self._with(requires_grad=required)

    def memory_format(self, memory_format: Any) -> Options:
        return self._with(memory_format=memory_format)


def check(*values: Any) -> None:
    """Raises:
    UnreadError: a value among them is not followed.
    """
    for value in values:
        if isinstance(value, Opaque):
            raise UnreadError(f"what rests on {value.what}")
        if isinstance(value, list | tuple) and not isinstance(value, Pointer | Address):
            check(*value)
