"""DeepSpeed's fused CUDA optimizers: fused_adam, fused_lion, fused_lamb.

Signatures follow the pybind definitions (csrc/adam/fused_adam_frontend.cpp,
csrc/lion/fused_lion_frontend.cpp, csrc/lamb/fused_lamb_cuda.cpp). The Adam and Lion kernels update in place
and allocate nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.stand_ins.signatures import Given, positional
from zerokit.rehearsal.timing.rank_time import take_time

_REDUCTION_THREADS = 512
_LARGEST_INT32 = 2**31 - 1

TensorLists = Sequence[Sequence[Tensor]]


def fused_adam() -> ModuleType:
    """`multi_tensor_adam` (csrc/adam/multi_tensor_adam.cu): gradients, parameters, exp_avg, exp_avg_sq."""
    rest = "lr beta1 beta2 epsilon step mode bias_correction weight_decay"
    return op_module("fused_adam", multi_tensor_adam=_multi_tensor("multi_tensor_adam", rest))


def fused_lion() -> ModuleType:
    """`multi_tensor_lion` (csrc/lion/multi_tensor_lion.cu): gradients, parameters, exp_avg."""
    rest = "lr beta1 beta2 step weight_decay"
    return op_module("fused_lion", multi_tensor_lion=_multi_tensor("multi_tensor_lion", rest))


def _multi_tensor(name: str, rest: str) -> Callable[..., None]:
    @positional(f"chunk_size noop_flag tensor_lists {rest}")
    def update(given: Given) -> None:
        check_lists(given["tensor_lists"])
        _take_time(name, *given["tensor_lists"])

    update.__name__ = name
    return update


def fused_lamb() -> ModuleType:
    """`lamb` of csrc/lamb/fused_lamb_cuda.cpp; allocates two times 512 sums and the coefficient."""

    @positional("p p_copy m v g lr beta1 beta2 max_coeff min_coeff eps grad_scale step mode bias_correction decay")
    def lamb(given: Given) -> Tensor:
        p, _, m, v, g, *_ = given.values()
        _check_lamb(p, m, v, g)
        _take_time("lamb", [g], [p], [m], [v])
        accumulate = torch.float32 if p.dtype == torch.float16 else p.dtype
        partial_sums = [
            torch.empty(_REDUCTION_THREADS, dtype=accumulate, device=p.device) for _ in ("weights", "update")
        ]
        coefficient = torch.empty(1, dtype=accumulate, device=p.device)
        del partial_sums
        return coefficient

    return op_module("fused_lamb", lamb=lamb)


def _take_time(name: str, gradients: Sequence[Tensor], *updated: Sequence[Tensor]) -> None:
    """Gradients are read; parameters and states are read and written."""
    take_time(name, gradients, updated, updated)


def _check_lamb(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> None:
    for name, tensor in (("p", p), ("m", m), ("v", v), ("g", g)):
        if not tensor.is_cuda:
            raise RuntimeError(f"{name} must be a CUDA tensor")
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name} must be contiguous")
    if p.numel() > _LARGEST_INT32:
        raise RuntimeError("parameter tensor is too large to be indexed with int32")
    if g.dtype == torch.float16 and p.dtype != torch.float32:
        raise RuntimeError("expected parameter to be of float type")
    if g.dtype not in (torch.float16, torch.float32, torch.float64):
        # The kernel is instantiated for these three alone (AT_DISPATCH_FLOATING_TYPES).
        raise NotImplementedError(f'"lamb_cuda_kernel" not implemented for {g.dtype}')


def check_lists(tensor_lists: TensorLists) -> None:
    """The checks of csrc/adam/multi_tensor_apply.cuh that parameters of a script may fail."""
    for tensor in itertools.chain(*tensor_lists):
        if not tensor.is_cuda:
            raise RuntimeError("expected input to be on cuda")
        if not (tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)):
            raise RuntimeError("A tensor was not contiguous.")
