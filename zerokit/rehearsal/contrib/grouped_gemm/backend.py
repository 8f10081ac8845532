"""grouped_gemm.backend (fanshiqing/grouped_gemm, csrc): matmuls of each expert's rows, and their order.

It launches one matmul per expert, as the original. The number of rows of an expert depends on values: all
experts are assumed to have the same number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["gmm", "sinkhorn"]


def gmm(
    a: Tensor,
    b: Tensor,
    batch_sizes: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    c: Tensor | None = None,
) -> Tensor:
    """The products of a's rows [tokens, k] with their expert's b [experts, k, n], or by `trans_b` [.., n, k].

    With `trans_a`, for each expert its rows of a [tokens, k], transposed, times those of b [tokens, n].
    Both are in bfloat16; `batch_sizes`, the rows of each expert, are int64 on the host.

    Raises:
        RuntimeError: the kernel does not accept the tensors.
    """
    assert not (trans_a and trans_b)
    for name, tensor, dimensions in (("batch_sizes", batch_sizes, 1), ("a", a, 2), ("b", b, 3 - trans_a)):
        assert tensor.ndim == dimensions, f"{name} has {tensor.ndim} dimensions, not {dimensions}"
    if batch_sizes.is_cuda or batch_sizes.dtype != torch.int64:
        raise RuntimeError("batch_sizes must be of int64, on the host")
    for name, tensor in (("a", a), ("b", b)):
        if not tensor.is_cuda or tensor.dtype != torch.bfloat16:
            raise RuntimeError(f"{name} must be of bfloat16, on CUDA")
    experts = batch_sizes.numel()
    if c is None:
        shape = (experts, a.size(1), b.size(1)) if trans_a else (a.size(0), b.size(1 if trans_b else 2))
        c = a.new_empty(shape)
    rows = -(-a.size(0) // experts)
    with torch.no_grad():
        for expert in range(experts):
            part = slice(expert * rows, (expert + 1) * rows)
            if trans_a:
                torch.mm(a[part].t(), b[part], out=c[expert])
            elif a[part].size(0):
                torch.mm(a[part], b[expert].t() if trans_b else b[expert], out=c[part])
    return c


def sinkhorn(cost: Tensor, tol: float = 0.0001) -> Tensor:
    """Costs [tokens, experts] in float32, balanced in place."""
    take_time("sinkhorn", cost, cost)
    return cost
