"""xentropy_cuda_lib of flash-attn (csrc/xentropy, until 2.8): cross entropy that keeps one value per row."""

from __future__ import annotations

import torch
from torch import Tensor

from zerokit.rehearsal.timing.rank_time import take_time

__all__ = ["backward", "forward"]


def forward(input: Tensor, labels: Tensor, smoothing: float, total_classes: int = -1) -> list[Tensor]:
    """Losses and log-sum-exps [rows] in float32, of logits [rows, classes] and labels [rows].

    Raises:
        RuntimeError: what the kernel does not take.
    """
    _check(logits=input, labels=labels)
    lse, losses = (torch.empty_like(labels, dtype=torch.float32) for _ in range(2))
    take_time("softmax_xentropy", input, input)  # goes over each row twice
    return [losses, lse]


def backward(
    grad_loss: Tensor,
    logits: Tensor,
    max_log_sum_exp: Tensor,
    labels: Tensor,
    smoothing: float,
    inplace: bool,
    total_classes: int = -1,
) -> Tensor:
    """Gradients of the logits, in their place if `inplace`.

    Raises:
        RuntimeError: what the kernel does not take.
    """
    if grad_loss.dtype != torch.float32:
        raise RuntimeError("expected grad types to be at::Float")
    _check(logits=logits, labels=labels, grad_loss=grad_loss, max_log_sum_exp=max_log_sum_exp)
    gradients = logits if inplace else torch.empty_like(logits)
    take_time("softmax_xentropy backward", logits, gradients)
    return gradients


def _check(logits: Tensor, labels: Tensor, **others: Tensor) -> None:
    for name, tensor in {"logits": logits, "labels": labels, **others}.items():
        if not tensor.is_cuda:
            raise RuntimeError(f"{name} must be a CUDA tensor")
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name} must be contiguous")
    if labels.dtype != torch.int64:
        raise RuntimeError("Label type should be CUDA Long")
    if logits.dim() != 2 or labels.dim() != 1 or logits.size(0) != labels.size(0):
        raise RuntimeError(f"logits [rows, classes] and labels [rows] are {logits.shape} and {labels.shape}")
