"""apex.normalization: layers that allocate and keep what the originals do (fused_layer_norm.py, layer_norm_cuda.cpp).

For the backward they keep the weights, the input (with `memory_efficient` the output), and statistics of each row
in float32: mean and inverse deviation, or for root-mean-square norms the inverse root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters
from zerokit.rehearsal.timing.rank_time import take_time

__all__ = [
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedLayerNormAffineMixedDtypesFunction",
    "FusedRMSNorm",
    "FusedRMSNormAffineFunction",
    "FusedRMSNormAffineMixedDtypesFunction",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
]

_PARTS = 16
"""Rows of partial gradients of a weight."""


class _NormFunction(torch.autograd.Function):
    """A norm of the input and its weights; the normalized shape, eps and `memory_efficient` follow them."""

    weights: int
    statistics: int
    has_dtype_of_weight = False

    @classmethod
    def forward(cls, ctx: Any, *arguments: Any) -> Tensor:
        input, *weights = (one.contiguous() for one in arguments[: 1 + cls.weights])
        shape, _, memory_efficient = (*arguments[1 + cls.weights :], False)[:3]
        if tuple(input.shape[-len(shape) :]) != tuple(shape):
            raise RuntimeError(f"expected input with shape [*, {', '.join(map(str, shape))}], got {input.shape}")
        output = torch.empty_like(input, dtype=weights[0].dtype if cls.has_dtype_of_weight else input.dtype)
        rows = input.numel() // math.prod(shape)
        statistics = [input.new_empty(rows, dtype=_accumulated(input.dtype)) for _ in range(cls.statistics)]
        take_time("cuApplyLayerNorm", input, input, output, *weights)  # goes over each row twice
        if memory_efficient:
            del statistics[:-1]
        ctx.save_for_backward(output if memory_efficient else input, *weights, *statistics)
        ctx.arguments, ctx.of = len(arguments), cls
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad, (kept, *others) = grad.contiguous(), ctx.saved_tensors
        weights = others[: ctx.of.weights]
        gradients = [torch.empty_like(one) for one in (kept, *weights)]
        if weights:
            parts = [one.new_empty((_PARTS, one.numel()), dtype=_accumulated(kept.dtype)) for one in weights]
            take_time("cuComputePartGradGammaBeta", grad, kept, parts)
            take_time("cuComputeGradGammaBeta", parts, gradients[1:])
            del parts
        take_time("cuComputeGradInput", grad, kept, grad, kept, gradients[0])
        return *gradients, *(None for _ in range(ctx.arguments - len(gradients)))


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class _LayerNormFunction(_NormFunction):
    weights, statistics = 0, 2


class FusedLayerNormAffineFunction(_NormFunction):
    weights, statistics = 2, 2


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    has_dtype_of_weight = True


class _RMSNormFunction(_NormFunction):
    weights, statistics = 0, 1


class FusedRMSNormAffineFunction(_NormFunction):
    weights, statistics = 1, 1


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    has_dtype_of_weight = True


def _norm(tensors: str, norm: type[_NormFunction]) -> Callable[..., Any]:
    """The function that applies a norm to input [..., *normalized_shape], with weights if there are any."""

    @with_parameters(f"{tensors} normalized_shape eps=1e-6 memory_efficient=False")
    def apply(given: Given) -> Any:
        arguments = list(given.values())
        if torch.is_autocast_enabled("cuda"):  # all tensors are cast before
            dtype = torch.get_autocast_dtype("cuda")
            arguments = [one.to(dtype) if _is_float(one) else one for one in arguments]
        with torch.amp.autocast("cuda", enabled=False):
            return norm.apply(*arguments)  # type: ignore[no-untyped-call]

    return apply


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


fused_layer_norm = _norm("input", _LayerNormFunction)
fused_layer_norm_affine = _norm("input weight bias", FusedLayerNormAffineFunction)
mixed_dtype_fused_layer_norm_affine = _norm("input weight bias", FusedLayerNormAffineMixedDtypesFunction)
fused_rms_norm = _norm("input", _RMSNormFunction)
fused_rms_norm_affine = _norm("input weight", FusedRMSNormAffineFunction)
mixed_dtype_fused_rms_norm_affine = _norm("input weight", FusedRMSNormAffineMixedDtypesFunction)


class _Fused(nn.Module):
    """Runs a norm layer of torch by functions of Apex where it is on a GPU."""

    _plain: Any
    _affine: Any

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)
        self.memory_efficient = memory_efficient

    def forward(self, input: Tensor) -> Any:
        if not input.is_cuda or torch.compiler.is_compiling():  # the originals compute by torch's operators
            return super().forward(input)
        weights = list(self.parameters())
        run = self._affine if weights else self._plain
        return run(input, *weights, self.normalized_shape, self.eps, self.memory_efficient)


class FusedLayerNorm(_Fused, nn.LayerNorm):
    """A layer of :func:`fused_layer_norm_affine`."""

    _plain, _affine = staticmethod(fused_layer_norm), staticmethod(fused_layer_norm_affine)


class FusedRMSNorm(_Fused, nn.RMSNorm):
    """A layer of :func:`fused_rms_norm_affine`."""

    _plain, _affine = staticmethod(fused_rms_norm), staticmethod(fused_rms_norm_affine)


class _Mixed(_Fused):
    """A norm with the weight's dtype as output dtype; a weight is required."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **others: Any,
    ) -> None:
        if not others.get("elementwise_affine", True):  # the originals ignore all other options
            raise RuntimeError(f"{type(self).__name__} does not support `elementwise_affine = False`")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """A layer of :func:`mixed_dtype_fused_layer_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_layer_norm_affine)


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """A layer of :func:`mixed_dtype_fused_rms_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_rms_norm_affine)
