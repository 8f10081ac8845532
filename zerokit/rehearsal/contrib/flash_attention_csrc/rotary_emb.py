"""rotary_emb of flash-attn (csrc/rotary, until 2.8): rotates halves of heads into given tensors."""

from __future__ import annotations

from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["apply_rotary"]


def apply_rotary(
    x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool, /
) -> None:
    """Writes the turned halves of x, x1 and x2 of one shape, to out1 and out2, which may be the same tensors.

    Raises:
        RuntimeError: a tensor is not on a GPU; shapes or dtypes differ.
    """
    named = {"x1": x1, "x2": x2, "cos": cos, "sin": sin, "out1": out1, "out2": out2}
    for name, tensor in named.items():
        if not tensor.is_cuda:
            raise RuntimeError(f"{name} must be on CUDA")
    for first, second in (("x1", "x2"), ("cos", "sin"), ("out1", "out2"), ("x1", "cos"), ("x1", "out1")):
        one, other = named[first], named[second]
        if one.dtype != other.dtype:
            raise RuntimeError(f"{first} and {second} are of {one.dtype} and {other.dtype}")
        if second != "cos" and one.shape != other.shape:
            raise RuntimeError(f"{first} and {second} have the shapes {one.shape} and {other.shape}")
    take_time("apply_rotary", x1, x2, cos, sin, out1, out2)
