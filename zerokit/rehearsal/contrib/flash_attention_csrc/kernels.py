"""rotary_emb, xentropy_cuda_lib and dropout_layer_norm of flash-attn (csrc, until 2.8).

Matrices are [rows, columns]; statistics are float32. Norms of two parallel branches are left out. All
functions raise RuntimeError for tensors that the kernel does not accept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.signatures import Given, functions_of, positional
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["apply_rotary", "backward", "dropout_add_ln_bwd", "dropout_add_ln_fwd", "forward"]

_signed = functions_of(__file__)


@positional("x1 x2 cos sin out1 out2 conj")
def apply_rotary(given: Given) -> None:
    """Writes the turned halves of x, x1 and x2, to out1 and out2, which may be the same tensors."""
    *tensors, _ = given.values()
    _check_cuda(**dict(zip(given, tensors, strict=False)))
    for first, second in (("x1", "x2"), ("cos", "sin"), ("out1", "out2"), ("x1", "cos"), ("x1", "out1")):
        one, other = given[first], given[second]
        if one.dtype != other.dtype:
            raise RuntimeError(f"{first} and {second} are of {one.dtype} and {other.dtype}")
        if second != "cos" and one.shape != other.shape:
            raise RuntimeError(f"{first} and {second} have the shapes {one.shape} and {other.shape}")
    take_time("apply_rotary", *tensors)


@_signed
def forward(given: Given) -> list[Tensor]:
    """Losses and log-sum-exps [rows] in float32, of logits [rows, classes] and labels [rows]."""
    logits, labels = given["input"], given["labels"]
    _check_logits(logits=logits, labels=labels)
    lse, losses = (torch.empty_like(labels, dtype=torch.float32) for _ in range(2))
    take_time("softmax_xentropy", logits, logits)  # goes over each row twice
    return [losses, lse]


@_signed
def backward(given: Given) -> Tensor:
    """Gradients of the logits, in their place if `inplace`."""
    if given["grad_loss"].dtype != torch.float32:
        raise RuntimeError("expected grad types to be at::Float")
    _check_logits(**{name: given[name] for name in ("logits", "labels", "grad_loss", "max_log_sum_exp")})
    logits: Tensor = given["logits"]
    gradients = logits if given["inplace"] else torch.empty_like(logits)
    take_time("softmax_xentropy backward", logits, gradients)
    return gradients


def _check_logits(logits: Tensor, labels: Tensor, **others: Tensor) -> None:
    tensors = {"logits": logits, "labels": labels, **others}
    _check_cuda(**tensors)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name} must be contiguous")
    if labels.dtype != torch.int64:
        raise RuntimeError("Label type should be CUDA Long")
    if logits.dim() != 2 or labels.dim() != 1 or logits.size(0) != labels.size(0):
        raise RuntimeError(f"logits [rows, classes] and labels [rows] are {logits.shape} and {labels.shape}")


def _check_cuda(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_cuda:
            raise RuntimeError(f"{name} must be on CUDA")


_LARGEST_HIDDEN_SIZE = 8192
_BLOCKS_PER_SM = 4
"""Each block of the backward has a row of partial gradients. The driver chooses their number by the kernel's
registers; one more or less is 1 MiB of working memory for 1024 columns."""


@_signed
def dropout_add_ln_fwd(given: Given) -> list[Tensor | None]:
    """The norm, the sum (None if it is x0 itself), the dropout mask (None without), means and deviations."""
    x0, residual, gamma = given["x0"], given["residual"], given["gamma"]
    x0_subset, z_subset, has_dropout = given["x0_subset_"], given["z_subset_"], given["dropout_p"] > 0
    _check_matrices(gamma, x0=x0, residual=residual)
    rows, columns = x0.shape if x0_subset is None else (x0_subset.size(0), x0.size(1))
    dtype = torch.float32 if given["residual_in_fp32"] else x0.dtype
    of_sum = dtype if residual is None else residual.dtype
    is_scaled = any(one is not None for one in (residual, given["rowscale_"], given["colscale_"], x0_subset))
    keeps_sum = is_scaled or has_dropout or of_sum != x0.dtype
    x = x0.new_empty((rows, columns), dtype=of_sum) if keeps_sum else None
    mask = torch.empty_like(x0, dtype=torch.uint8) if has_dropout else None
    z = x0.new_empty((rows if z_subset is None else given["z_numrows"], columns))
    mean, deviation = (x0.new_empty(rows, dtype=torch.float32) for _ in range(2))
    take_time("dropout_add_ln_fwd", x0, residual, gamma, given["beta_"], x, mask, z)
    return [z, x, mask, mean, deviation]


@_signed
def dropout_add_ln_bwd(given: Given) -> list[Tensor | None]:
    """Gradients of x0, residual, weight and bias, and partial ones of both; then of the scaled columns."""
    dz, x, gamma, columns = (given[name] for name in ("dz", "x", "gamma", "colscale_"))
    _check_matrices(gamma, x=x, dz=dz, dx=given["dx_"])
    rows = x.size(0) if given["x0_subset_"] is None else given["x0_numrows"]
    of_x0 = x.new_empty((rows, x.size(1)), dtype=dz.dtype)
    of_residual = torch.empty_like(x) if given["has_residual"] else None
    of_gamma, of_beta = torch.empty_like(gamma), torch.empty_like(gamma)
    of_columns = None if columns is None else torch.empty_like(columns)
    parts = [_partial(gamma) for _ in range(2 if columns is None else 3)]
    read = [dz, given["dx_"], x, given["x0_"], given["dmask_"], gamma]
    take_time("dropout_add_ln_bwd", read, of_x0, of_residual, parts)
    of_scale = [] if columns is None else [of_columns, parts[2]]
    return [of_x0, of_residual, of_gamma, of_beta, *parts[:2], *of_scale]


def _partial(gamma: Tensor) -> Tensor:
    """Gradients of a weight by block, summed by a second kernel."""
    blocks = torch.cuda.get_device_properties(gamma.device).multi_processor_count * _BLOCKS_PER_SM
    return gamma.new_empty((blocks, gamma.numel()), dtype=torch.float32)


def _check_matrices(gamma: Tensor, **matrices: Tensor | None) -> None:
    given = {name: matrix for name, matrix in matrices.items() if matrix is not None}
    _check_cuda(**given)
    for name, matrix in given.items():
        if matrix.dim() != 2 or not matrix.is_contiguous() or matrix.size(1) != gamma.numel():
            raise RuntimeError(f"{name} must be contiguous, of [rows, {gamma.numel()}], and is {matrix.shape}")
    if gamma.numel() % 8 or gamma.numel() > _LARGEST_HIDDEN_SIZE:
        raise RuntimeError(f"Unsupported hidden_size: {gamma.numel()}")
