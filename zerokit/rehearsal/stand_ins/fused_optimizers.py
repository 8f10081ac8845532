"""DeepSpeed's fused CUDA optimizers: fused_adam, fused_lion, fused_lamb.

Signatures follow the pybind definitions (csrc/adam/fused_adam_frontend.cpp,
csrc/lion/fused_lion_frontend.cpp, csrc/lamb/fused_lamb_cuda.cpp); none names its arguments, so they are
positional only. The Adam and Lion kernels update in place and allocate nothing. Tensors must be on
`device_type`, which is "cuda" unless a run without the virtual device sets it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.arithmetic import float32, kernel, pieces, stand_in_module
from zerokit.rehearsal.timing.rank_time import rank_time

_L2_MODE = 0
_EPS_INSIDE_SQUARE_ROOT = 0
_REDUCTION_THREADS = 512
_LARGEST_INT32 = 2**31 - 1


def fused_adam(*, compute: bool, device_type: str = "cuda") -> ModuleType:
    """`multi_tensor_adam` (csrc/adam/multi_tensor_adam.cu): gradients, parameters, exp_avg, exp_avg_sq."""

    def multi_tensor_adam(
        chunk_size: int,
        noop_flag: Tensor,
        tensor_lists: Sequence[Sequence[Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: int,
        mode: int,
        bias_correction: int,
        weight_decay: float,
        /,
    ) -> None:
        check_lists(tensor_lists, 4, device_type)
        _take_time("multi_tensor_adam", *tensor_lists)
        lr, beta1, beta2 = float32(lr), float32(beta1), float32(beta2)
        epsilon, weight_decay = float32(epsilon), float32(weight_decay)
        steps = operator.index(step)
        correction1 = float32(1 - beta1**steps) if bias_correction else 1.0
        correction2 = float32(1 - beta2**steps) if bias_correction else 1.0
        if not compute:
            return
        with kernel():
            for tensors in zip(*tensor_lists, strict=True):
                for grad, param, exp_avg, exp_avg_sq in pieces(*tensors):
                    g, p = grad.float(), param.float()
                    if mode == _L2_MODE:
                        g = g + weight_decay * p
                    m = beta1 * exp_avg.float() + float32(1 - beta1) * g
                    v = beta2 * exp_avg_sq.float() + float32(1 - beta2) * g * g
                    update = (m / correction1) / ((v / correction2).sqrt() + epsilon)
                    if mode != _L2_MODE:
                        update = update + weight_decay * p
                    param.copy_(p - lr * update)
                    exp_avg.copy_(m)
                    exp_avg_sq.copy_(v)

    return stand_in_module("fused_adam", multi_tensor_adam=multi_tensor_adam)


def fused_lion(*, compute: bool, device_type: str = "cuda") -> ModuleType:
    """`multi_tensor_lion` (csrc/lion/multi_tensor_lion.cu): gradients, parameters, exp_avg."""

    def multi_tensor_lion(
        chunk_size: int,
        noop_flag: Tensor,
        tensor_lists: Sequence[Sequence[Tensor]],
        lr: float,
        beta1: float,
        beta2: float,
        step: int,
        weight_decay: float,
        /,
    ) -> None:
        check_lists(tensor_lists, 3, device_type)
        _take_time("multi_tensor_lion", *tensor_lists)
        lr, beta1, beta2 = float32(lr), float32(beta1), float32(beta2)
        after_decay = float32(1 - float32(lr * float32(weight_decay)))
        if not compute:
            return
        with kernel():
            for tensors in zip(*tensor_lists, strict=True):
                for grad, param, exp_avg in pieces(*tensors):
                    g, m = grad.float(), exp_avg.float()
                    direction = beta1 * m + float32(1 - beta1) * g
                    # A direction of exactly zero moves up: the kernel asks for `c > 0`, not for the sign.
                    update = torch.where(direction > 0, -lr, lr)
                    param.copy_(param.float() * after_decay + update)
                    exp_avg.copy_(beta2 * m + float32(1 - beta2) * g)

    return stand_in_module("fused_lion", multi_tensor_lion=multi_tensor_lion)


def fused_lamb(*, compute: bool, device_type: str = "cuda") -> ModuleType:
    """`lamb` of csrc/lamb/fused_lamb_cuda.cpp; allocates two times 512 sums and the coefficient."""

    def lamb(
        p: Tensor,
        p_copy: Tensor,
        m: Tensor,
        v: Tensor,
        g: Tensor,
        lr: float,
        beta1: float,
        beta2: float,
        max_coeff: float,
        min_coeff: float,
        eps: float,
        grad_scale: float,
        step: int,
        mode: int,
        bias_correction: int,
        decay: float,
        /,
    ) -> Tensor:
        _check_lamb(p, p_copy, m, v, g, device_type)
        _take_time("lamb", [g], [p], [m], [v])
        accumulate = torch.float32 if p.dtype == torch.float16 else p.dtype
        partial_sums = [
            torch.empty(_REDUCTION_THREADS, dtype=accumulate, device=p.device) for _ in ("weights", "update")
        ]
        coefficient = torch.empty(1, dtype=accumulate, device=p.device)
        lr, beta1, beta2 = float32(lr), float32(beta1), float32(beta2)
        eps, decay, grad_scale = float32(eps), float32(decay), float32(grad_scale)
        steps = operator.index(step)
        step_size = lr
        if bias_correction:
            step_size = float32(lr * math.sqrt(1 - beta2**steps) / (1 - beta1**steps))
        if compute:
            with kernel():
                squares = torch.zeros(2, dtype=torch.float64)
                for p_piece, m_piece, v_piece, g_piece in pieces(p, m, v, g):
                    squares += _lamb_moments(
                        p_piece, m_piece, v_piece, g_piece, beta1, beta2, eps, grad_scale, mode, decay
                    )
                coefficient.fill_(_lamb_coefficient(squares, float32(max_coeff), float32(min_coeff)))
                for p_piece, m_piece, v_piece in pieces(p, m, v):
                    update = m_piece / _lamb_denominator(v_piece, eps, mode) + decay * p_piece
                    p_piece.sub_(step_size * float(coefficient.item()) * update)
                if p_copy.numel() and g.dtype == torch.float16:
                    p_copy.copy_(p)
        del partial_sums
        return coefficient

    return stand_in_module("fused_lamb", lamb=lamb)


def _lamb_moments(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    grad_scale: float,
    mode: int,
    decay: float,
) -> Tensor:
    scaled = g.to(p.dtype) / grad_scale
    m.copy_(beta1 * m + float32(1 - beta1) * scaled)
    v.copy_(beta2 * v + float32(1 - beta2) * scaled * scaled)
    update = m / _lamb_denominator(v, eps, mode) + decay * p
    return torch.stack([p.double().square().sum(), update.double().square().sum()]).cpu()


def _lamb_denominator(v: Tensor, eps: float, mode: int) -> Tensor:
    return (v + eps).sqrt() if mode == _EPS_INSIDE_SQUARE_ROOT else v.sqrt() + eps


def _lamb_coefficient(squares: Tensor, max_coeff: float, min_coeff: float) -> float:
    weights, update = (math.sqrt(float(square)) for square in squares)
    if weights == 0 or update == 0:
        return 1.0
    return max(min(weights / update, max_coeff), min_coeff)


def _take_time(name: str, gradients: Sequence[Tensor], *updated: Sequence[Tensor]) -> None:
    """Gradients are read; parameters and states are read and written."""
    if time := rank_time():
        moved = sum(2 * tensor.nbytes for tensors in updated for tensor in tensors)
        time.kernel(name, moved + sum(gradient.nbytes for gradient in gradients))


def _check_lamb(p: Tensor, p_copy: Tensor, m: Tensor, v: Tensor, g: Tensor, device_type: str) -> None:
    for name, tensor in (("p", p), ("m", m), ("v", v), ("g", g)):
        if tensor.device.type != device_type:
            raise RuntimeError(f"{name} must be a {device_type.upper()} tensor")
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name} must be contiguous")
        if tensor.numel() != p.numel():
            raise RuntimeError(f"number of elements in {name} and p tensors should be equal")
    if p_copy.numel() not in (0, p.numel()):
        raise RuntimeError("number of elements in p_copy and p tensors should be equal, or p_copy empty")
    if p.numel() > _LARGEST_INT32:
        raise RuntimeError("parameter tensor is too large to be indexed with int32")
    if g.dtype == torch.float16 and p.dtype != torch.float32:
        raise RuntimeError("expected parameter to be of float type")
    if g.dtype not in (torch.float16, torch.float32, torch.float64):
        # The kernel is instantiated for these three alone (AT_DISPATCH_FLOATING_TYPES).
        raise NotImplementedError(f'"lamb_cuda_kernel" not implemented for {g.dtype}')


def check_lists(tensor_lists: Sequence[Sequence[Tensor]], depth: int, device_type: str) -> None:
    """The checks of csrc/adam/multi_tensor_apply.cuh, which a mistake in a script can trip over."""
    if len(tensor_lists) != depth:
        raise RuntimeError(f"expected {depth} lists of tensors, got {len(tensor_lists)}")
    first = tensor_lists[0]
    if not first:
        raise RuntimeError("the lists of tensors are empty")
    if first[0].device.type != device_type:
        raise RuntimeError(f"expected input to be on {device_type}")
    for tensors in tensor_lists:
        if len(tensors) != len(first):
            raise RuntimeError("Size mismatch among tensor lists")
        for tensor, reference in zip(tensors, first, strict=True):
            if not (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)):
                raise RuntimeError("A tensor was not contiguous.")
            if tensor.device != first[0].device:
                raise RuntimeError("A tensor was not on the same device as the first tensor")
            if tensor.numel() != reference.numel():
                raise RuntimeError("Size mismatch")
