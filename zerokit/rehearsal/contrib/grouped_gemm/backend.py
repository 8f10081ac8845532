"""grouped_gemm.backend (fanshiqing/grouped_gemm, csrc): matmuls of each expert's rows, and their order.

One matmul per expert is launched, as in the original. The number of rows of an expert depends on values, so
all experts are assumed to have the same number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["gmm", "permute", "sinkhorn", "unpermute", "unpermute_bwd"]

_SORTED = 5
"""Arrays of int32 that sorting the rows takes: keys, rows, sorted rows, and a copy of keys and rows."""


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

    Args:
        a: in bfloat16, on the GPU.
        b: in bfloat16, on the GPU.
        batch_sizes: rows of each expert, int64, on the host.
        trans_a: as above.
        trans_b: as above.
        c: where to write; a new tensor if not given.

    Raises:
        RuntimeError: what the kernel does not take.
    """
    assert not (trans_a and trans_b)
    assert batch_sizes.ndim == 1, f"batch_sizes has {batch_sizes.ndim} dimensions, not one"
    assert a.ndim == 2, f"a has {a.ndim} dimensions, not 2"
    assert b.ndim == (2 if trans_a else 3), f"b has {b.ndim} dimensions"
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


def permute(
    input: Tensor, indices: Tensor, num_out_tokens: int, workspace: list[Tensor], max_expanded_token_num: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Tokens [tokens, size] in the order of their experts [tokens, k], their origins, and the workspace.

    Args:
        input: the tokens.
        indices: the experts of each, int32.
        num_out_tokens: how many to keep; 0 for all.
        workspace: of an earlier call; made if empty.
        max_expanded_token_num: for how many it is made.
    """
    if not workspace:
        workspace = [
            torch.empty(max_expanded_token_num, dtype=torch.int32, device=input.device)
            for _ in range(_SORTED)
        ]
    expanded = indices.numel()
    ordered = input.new_empty((num_out_tokens or expanded, input.size(1)))
    origins = torch.empty(expanded, dtype=torch.int32, device=input.device)
    take_time("moe_permute_topK", indices, workspace, input, ordered, origins)
    return ordered, origins, workspace


def unpermute(input: Tensor, row_id_map: Tensor, prob: Tensor, max_tokens: int, num_topK: int) -> Tensor:  # noqa: N803 - its name
    """Rows [rows, size] summed up to tokens [max_tokens, size], weighted by `prob` if it has elements."""
    tokens = input.new_empty((max_tokens, input.size(1)))
    take_time("moe_recover_topK", input, row_id_map, prob, tokens)
    return tokens


def unpermute_bwd(
    input_bwd: Tensor, input_fwd: Tensor, row_id_map: Tensor, prob: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows [rows, size] and of their weights [tokens, k], from the tokens' gradients."""
    if prob is None:
        prob = input_bwd.new_ones((input_bwd.size(0), 1), dtype=torch.float32)
    of_rows = input_bwd.new_empty((input_fwd.size(0), input_bwd.size(1)))
    of_prob = torch.empty_like(prob, dtype=torch.float32)
    take_time("moe_recover_topK backward", input_bwd, input_fwd, row_id_map, prob, of_rows, of_prob)
    return of_rows, of_prob
