"""fused_weight_gradient_mlp_cuda of Apex (csrc/megatron): matmuls that are added to gradients in place."""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.native.backend import uncounted
from zerokit.rehearsal.timing.rank_time import take_time_of_product

__all__ = ["wgrad_gemm_accum_fp16", "wgrad_gemm_accum_fp32"]


def wgrad_gemm_accum_fp32(input: Tensor, d_output: Tensor, d_weight: Tensor, /) -> None:
    """Adds a weight's gradient, of input [..., in] and d_output [..., out], to d_weight [out, in] in float32.

    Raises:
        RuntimeError: a tensor is not on a GPU, or d_weight of another dtype.
    """
    if d_weight.dtype != torch.float32:
        raise RuntimeError(f"wgrad_gemm_accum_fp32 adds to float32, and d_weight is {d_weight.dtype}")
    _accumulate(input, d_output, d_weight)


def wgrad_gemm_accum_fp16(input: Tensor, d_output: Tensor, d_weight: Tensor, /) -> None:
    """As :func:`wgrad_gemm_accum_fp32`, with all in one dtype of half precision."""
    if d_weight.dtype != input.dtype or d_weight.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"wgrad_gemm_accum_fp16 takes one dtype of half precision, not {d_weight.dtype}")
    _accumulate(input, d_output, d_weight)


def _accumulate(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:
    for tensor in (input, d_output, d_weight):
        if not tensor.is_cuda:
            raise RuntimeError("fused_weight_gradient_mlp_cuda takes tensors on CUDA")
    rows, gradients = (tensor.reshape(-1, tensor.size(-1)) for tensor in (input, d_output))
    with torch.no_grad(), uncounted():  # counts the FLOPs
        torch.mm(gradients.t(), rows)
    take_time_of_product("wgrad_gemm_accum", d_weight.size(0), d_weight.size(1), rows.size(0), input.dtype)
