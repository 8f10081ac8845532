"""What memory lies behind: the tensors that a `DTensor`, or another wrapper of torch's, is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def parts_of(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors that memory lies behind: of a DTensor what this rank holds of it."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, torch.Tensor):  # a DTensor names its mesh as well
            yield from parts_of(part)
