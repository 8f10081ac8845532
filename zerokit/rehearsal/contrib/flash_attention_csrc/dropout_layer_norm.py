"""dropout_layer_norm of flash-attn (csrc/layer_norm/ln_api.cpp): dropout, residual and norm in one kernel.

Matrices are [rows, hidden size]; statistics are float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "dropout_add_ln_bwd",
    "dropout_add_ln_fwd",
    "dropout_add_ln_parallel_residual_bwd",
    "dropout_add_ln_parallel_residual_fwd",
]

_LARGEST_HIDDEN_SIZE = 8192
_BLOCKS_PER_SM = 4
"""Each block of the backward has a row of partial gradients. How many a multiprocessor takes the driver alone
says, by the registers of the kernel; one more or less is 1 MiB of working memory for 1024 columns."""


def dropout_add_ln_fwd(
    x0: Tensor,
    residual: Tensor | None,
    gamma: Tensor,
    beta_: Tensor | None,
    rowscale_: Tensor | None,
    colscale_: Tensor | None,
    x0_subset_: Tensor | None,
    z_subset_: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale_const: float,
    z_numrows: int,
    gen_: torch.Generator | None,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> list[Tensor | None]:
    """The norm, the sum (None if it is x0 itself), the dropout mask (None without), means and deviations.

    Raises:
        RuntimeError: what the kernel does not take.
    """
    _check(gamma, x0=x0, residual=residual)
    rows, columns = x0.shape if x0_subset_ is None else (x0_subset_.size(0), x0.size(1))
    of_sum = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype
    scaled = any(one is not None for one in (residual, rowscale_, colscale_, x0_subset_))
    keeps_sum = scaled or dropout_p > 0 or of_sum != x0.dtype
    x = x0.new_empty((rows, columns), dtype=of_sum) if keeps_sum else None
    mask = torch.empty_like(x0, dtype=torch.uint8) if dropout_p > 0 else None
    z = x0.new_empty((rows if z_subset_ is None else z_numrows, columns))
    mean, deviation = (x0.new_empty(rows, dtype=torch.float32) for _ in range(2))
    take_time("dropout_add_ln_fwd", x0, residual, gamma, beta_, x, mask, z)
    return [z, x, mask, mean, deviation]


def dropout_add_ln_bwd(
    dz: Tensor,
    dx_: Tensor | None,
    x: Tensor,
    x0_: Tensor | None,
    dmask_: Tensor | None,
    mu: Tensor,
    rsigma: Tensor,
    gamma: Tensor,
    rowscale_: Tensor | None,
    colscale_: Tensor | None,
    x0_subset_: Tensor | None,
    z_subset_: Tensor | None,
    dropout_p: float,
    rowscale_const: float,
    x0_numrows: int,
    has_residual: bool,
    is_rms_norm: bool = False,
) -> list[Tensor | None]:
    """Gradients of x0, residual, weight and bias, and partial ones of both; then of the scaled columns.

    Raises:
        RuntimeError: what the kernel does not take.
    """
    _check(gamma, x=x, dz=dz, dx=dx_)
    rows = x.size(0) if x0_subset_ is None else x0_numrows
    of_x0 = x.new_empty((rows, x.size(1)), dtype=dz.dtype)
    of_residual = torch.empty_like(x) if has_residual else None
    of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(gamma)
    of_columns = None if colscale_ is None else torch.empty_like(colscale_)
    parts = [_partial(gamma) for _ in range(2 if colscale_ is None else 3)]
    take_time("dropout_add_ln_bwd", dz, dx_, x, x0_, dmask_, gamma, of_x0, of_residual, parts)
    of_scale = [] if colscale_ is None else [of_columns, parts[2]]
    return [of_x0, of_residual, of_gamma, of_beta, *parts[:2], *of_scale]


def dropout_add_ln_parallel_residual_fwd(
    x0: Tensor,
    x1_: Tensor | None,
    residual: Tensor | None,
    gamma0: Tensor,
    beta0_: Tensor | None,
    gamma1_: Tensor | None,
    beta1_: Tensor | None,
    dropout_p: float,
    epsilon: float,
    gen_: torch.Generator | None,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> list[Tensor | None]:
    """As :func:`dropout_add_ln_fwd`, of two branches: two norms, the sum, two masks, means and deviations."""
    _check(gamma0, x0=x0, x1=x1_, residual=residual)
    of_sum = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x0.dtype
    keeps_sum = residual is not None or x1_ is not None or dropout_p > 0 or of_sum != x0.dtype
    x = torch.empty_like(x0, dtype=of_sum) if keeps_sum else None
    masks = [
        torch.empty_like(one, dtype=torch.uint8) if one is not None and dropout_p > 0 else None
        for one in (x0, x1_)
    ]
    z0, z1 = torch.empty_like(x0), None if gamma1_ is None else torch.empty_like(x0)
    mean, deviation = (x0.new_empty(x0.size(0), dtype=torch.float32) for _ in range(2))
    take_time("dropout_add_ln_parallel_residual_fwd", x0, x1_, residual, x, masks, z0, z1)
    return [z0, z1, x, *masks, mean, deviation]


def dropout_add_ln_parallel_residual_bwd(
    dz0: Tensor,
    dz1_: Tensor | None,
    dx_: Tensor | None,
    x: Tensor,
    dmask0_: Tensor | None,
    dmask1_: Tensor | None,
    mu: Tensor,
    rsigma: Tensor,
    gamma0: Tensor,
    gamma1_: Tensor | None,
    dropout_p: float,
    has_x1: bool,
    has_residual: bool,
    is_rms_norm: bool = False,
) -> list[Tensor | None]:
    """Gradients of x0, x1 and residual, of both weights and biases, and partial ones of these."""
    _check(gamma0, x=x, dz0=dz0, dz1=dz1_, dx=dx_)
    of_x0, of_x1 = (torch.empty_like(x, dtype=dz0.dtype) if there else None for there in (True, has_x1))
    of_residual = torch.empty_like(x) if has_residual else None
    first, second = (
        [None, None] if one is None else [torch.empty_like(gamma0) for _ in range(2)]
        for one in (gamma0, gamma1_)
    )
    parts, other_parts = (
        [None, None] if one is None else [_partial(gamma0) for _ in range(2)] for one in (gamma0, gamma1_)
    )
    moved = [dz0, dz1_, dx_, x, dmask0_, dmask1_, of_x0, of_x1, of_residual, parts, other_parts]
    take_time("dropout_add_ln_parallel_residual_bwd", moved)
    return [of_x0, of_x1, of_residual, *first, *second, *parts, *other_parts]


def _partial(gamma: Tensor) -> Tensor:
    """Gradients of a weight by block, summed by a second kernel."""
    blocks = torch.cuda.get_device_properties(gamma.device).multi_processor_count * _BLOCKS_PER_SM
    return gamma.new_empty((blocks, gamma.numel()), dtype=torch.float32)


def _check(gamma: Tensor, **matrices: Tensor | None) -> None:
    for name, matrix in matrices.items():
        if matrix is None:
            continue
        if not matrix.is_cuda:
            raise RuntimeError(f"{name} must be on CUDA")
        if matrix.dim() != 2 or not matrix.is_contiguous() or matrix.size(1) != gamma.numel():
            raise RuntimeError(
                f"{name} must be contiguous, of [rows, {gamma.numel()}], and is {matrix.shape}"
            )
    if gamma.numel() % 8 or gamma.numel() > _LARGEST_HIDDEN_SIZE:
        raise RuntimeError(f"Unsupported hidden_size: {gamma.numel()}")
