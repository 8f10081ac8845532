"""Tensors whose values ranks tell each other: small ones, and those of integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from zerokit.rehearsal.native.backend import SMALL_BYTES, is_made_up, uncounted
from zerokit.rehearsal.ranks.exchange import UNKNOWN

_MOST_TOLD = 2**24
"""Bytes of integers; more may be computed."""


def has_values(tensor: torch.Tensor) -> bool:
    """Whether what `tensor` holds may be computed, and is little enough to be told."""
    size = tensor.untyped_storage().nbytes()
    return size < SMALL_BYTES or (size <= _MOST_TOLD and not tensor.is_floating_point())


def carries_values(tensor: torch.Tensor, *, from_one: bool) -> bool:
    """Whether ranks tell each other what they hold in such a tensor; the same for all that are alike.

    What all ranks compute together, such as losses and norms, is made up, and the same on all of them.

    Args:
        tensor: of integers, whose size may differ between ranks and so decides nothing: who has too many
            tells :data:`UNKNOWN`; or of reals, of the size that it has on all ranks.
        from_one: whether one rank tells all others.
    """
    size = tensor.numel() * tensor.element_size()
    return not _is_of_reals(tensor) or (from_one and size < SMALL_BYTES)


def _is_of_reals(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def what(tensor: torch.Tensor) -> str:
    """Size and type of a tensor, which have to be the same where it is received."""
    return f"{tensor.numel():,} x {str(tensor.dtype).removeprefix('torch.')}"


def values_of(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, :data:`UNKNOWN` if it holds none that anybody has computed."""
    if tensor.device.type == "meta" or not has_values(tensor):
        return UNKNOWN
    # Small integers are always computed, whatever lies beside them in their memory.
    is_small = tensor.untyped_storage().nbytes() < SMALL_BYTES
    if is_made_up(tensor) and (_is_of_reals(tensor) or not is_small):
        return UNKNOWN
    with torch.no_grad(), uncounted():
        flat = tensor.detach().reshape(-1).contiguous().cpu()
        return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def unpacked(like: torch.Tensor, values: bytes) -> torch.Tensor:
    """A tensor of the host, of the shape and type of `like`, from :func:`values_of`."""
    with uncounted():
        if not values:
            return like.detach().cpu()
        flat = torch.frombuffer(bytearray(values), dtype=torch.uint8).view(like.dtype)
        return flat.view(like.shape) if flat.numel() == like.numel() else like.detach().cpu()


def reduced(like: torch.Tensor, held: Sequence[bytes], operation: Any) -> torch.Tensor:
    """What all ranks' integers come to.

    Args:
        like: of the shape and type of each rank's tensor.
        held: by rank; of many ranks, few are not the same.
        operation: a `torch.distributed.ReduceOp`.
    """
    operations = dist.ReduceOp
    parts = [(unpacked(like, values), times) for values, times in Counter(held).items()]
    result = parts[0][0].clone()
    # The operation that torch hands on is equal to the one of that name only if it stands on the left.
    with uncounted(), torch.no_grad():
        if operation == operations.SUM or operation == operations.AVG:
            result = sum(part * times for part, times in parts)  # type: ignore[assignment]
            if operation == operations.AVG:
                result = result.div(len(held), rounding_mode="trunc")
        elif operation == operations.PRODUCT:
            result = torch.stack([part**times for part, times in parts]).prod(0)
        elif operation == operations.MAX:
            result = torch.stack([part for part, _ in parts]).amax(0)
        elif operation == operations.MIN:
            result = torch.stack([part for part, _ in parts]).amin(0)
        elif operation == operations.BXOR:
            result = torch.zeros_like(result)
            for part in (part for part, times in parts if times % 2):
                result = result ^ part
        else:
            for part, _ in parts[1:]:
                result = result & part if operation == operations.BAND else result | part
        return result.to(like.dtype)
