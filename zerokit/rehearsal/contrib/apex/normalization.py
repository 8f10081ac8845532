"""apex.normalization: layers that keep for the backward what the originals keep (fused_layer_norm.py).

They keep the weights, the input (with `memory_efficient` the output), and one or two statistics per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zerokit.rehearsal.contrib.apex import fused_layer_norm_cuda as kernels

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


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """A layer norm with weight and bias."""

    run = staticmethod(kernels.forward_affine)

    @classmethod
    def forward(
        cls,
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        input, weight, bias = (one.contiguous() for one in (input, weight, bias))
        output, mean, inverse = cls.run(input, normalized_shape, weight, bias, eps)
        kept = (output, weight, bias, None) if memory_efficient else (input, weight, bias, mean)
        ctx.save_for_backward(*kept, inverse)
        ctx.rest = (normalized_shape, eps, memory_efficient)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        kept, weight, bias, mean, inverse = ctx.saved_tensors
        shape, *rest = ctx.rest
        of_all = kernels.backward_affine(grad.contiguous(), mean, inverse, kept, shape, weight, bias, *rest)
        return *of_all, None, None, None


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """A norm with the weight's dtype as output dtype."""

    run = staticmethod(kernels.forward_affine_mixed_dtypes)


class FusedRMSNormAffineFunction(torch.autograd.Function):
    """A root-mean-square norm with a weight."""

    run = staticmethod(kernels.rms_forward_affine)

    @classmethod
    def forward(
        cls,
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        input, weight = input.contiguous(), weight.contiguous()
        output, inverse = cls.run(input, normalized_shape, weight, eps)
        ctx.save_for_backward(output if memory_efficient else input, weight, inverse)
        ctx.rest = (normalized_shape, eps, memory_efficient)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        kept, weight, inverse = ctx.saved_tensors
        shape, *rest = ctx.rest
        of_all = kernels.rms_backward_affine(grad.contiguous(), inverse, kept, shape, weight, *rest)
        return *of_all, None, None, None


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """A norm with the weight's dtype as output dtype."""

    run = staticmethod(kernels.rms_forward_affine_mixed_dtypes)


class _Plain(torch.autograd.Function):
    """A norm without weights, of either kind."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, shape: Sequence[int], eps: float, memory_efficient: bool, is_rms: bool
    ) -> Tensor:
        input = input.contiguous()
        output, *statistics = (kernels.rms_forward if is_rms else kernels.forward)(input, shape, eps)
        ctx.save_for_backward(output if memory_efficient else input, *statistics[-1:])
        ctx.mean = None if is_rms or memory_efficient else statistics[0]
        ctx.rest, ctx.is_rms = (shape, eps, memory_efficient), is_rms
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        kept, inverse = ctx.saved_tensors
        grad = grad.contiguous()
        if ctx.is_rms:
            return kernels.rms_backward(grad, inverse, kept, *ctx.rest), None, None, None, None
        return kernels.backward(grad, ctx.mean, inverse, kept, *ctx.rest), None, None, None, None


def _applied(function: Any, *tensors: Tensor, rest: Sequence[Any]) -> Tensor:
    """Under autocast all tensors are cast before, as the originals do."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        tensors = tuple(one.to(dtype) if one.is_floating_point() else one for one in tensors)
    with torch.amp.autocast("cuda", enabled=False):
        result: Tensor = function.apply(*tensors, *rest)
    return result


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """The norm of input [..., *normalized_shape], in its dtype."""
    rest = (normalized_shape, eps, memory_efficient)
    return _applied(FusedLayerNormAffineFunction, input, weight, bias, rest=rest)


def mixed_dtype_fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """As :func:`fused_layer_norm_affine`, in the weight's dtype."""
    rest = (normalized_shape, eps, memory_efficient)
    return _applied(FusedLayerNormAffineMixedDtypesFunction, input, weight, bias, rest=rest)


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """The root-mean-square norm of input [..., *normalized_shape], in its dtype."""
    rest = (normalized_shape, eps, memory_efficient)
    return _applied(FusedRMSNormAffineFunction, input, weight, rest=rest)


def mixed_dtype_fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    """As :func:`fused_rms_norm_affine`, in the weight's dtype."""
    rest = (normalized_shape, eps, memory_efficient)
    return _applied(FusedRMSNormAffineMixedDtypesFunction, input, weight, rest=rest)


def fused_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """As :func:`fused_layer_norm_affine`, without weights."""
    return _applied(_Plain, input, rest=(normalized_shape, eps, memory_efficient, False))


def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    """As :func:`fused_rms_norm_affine`, without weights."""
    return _applied(_Plain, input, rest=(normalized_shape, eps, memory_efficient, True))


class _Norm(nn.Module):
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = torch.Size(shape)
        self.eps, self.elementwise_affine, self.memory_efficient = eps, elementwise_affine, memory_efficient
        for name in self._names():
            self.register_parameter(
                name, nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            )
        self.reset_parameters()

    def _names(self) -> Sequence[str]:
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Ones, and zeros for a bias."""
        for name, parameter in self.named_parameters(recurse=False):
            (nn.init.zeros_ if name == "bias" else nn.init.ones_)(parameter)

    def _is_fused(self, input: Tensor) -> bool:
        """Elsewhere the originals compute with torch's operators."""
        return input.is_cuda and not torch.compiler.is_compiling()

    def _options(self) -> tuple[Any, ...]:
        return self.normalized_shape, self.eps, self.memory_efficient

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_Norm):
    """A layer of :func:`fused_layer_norm_affine`."""

    _affine: Any = staticmethod(fused_layer_norm_affine)

    def _names(self) -> Sequence[str]:
        return "weight", "bias"

    def forward(self, input: Tensor) -> Tensor:
        if not self._is_fused(input):
            return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        if self.weight is None:
            return fused_layer_norm(input, *self._options())
        result: Tensor = self._affine(input, self.weight, self.bias, *self._options())
        return result


class FusedRMSNorm(_Norm):
    """A layer of :func:`fused_rms_norm_affine`."""

    _affine: Any = staticmethod(fused_rms_norm_affine)

    def _names(self) -> Sequence[str]:
        return ("weight",)

    def forward(self, input: Tensor) -> Tensor:
        if not self._is_fused(input):
            return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)
        if self.weight is None:
            return fused_rms_norm(input, *self._options())
        result: Tensor = self._affine(input, self.weight, *self._options())
        return result


class _Mixed(_Norm):
    """A norm with the weight's dtype as output dtype; a weight is required."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **others: Any,
    ) -> None:
        if not others.get("elementwise_affine", True):  # and all else counts for nothing, as in the originals
            raise RuntimeError(f"{type(self).__name__} does not support `elementwise_affine = False`")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """A layer of :func:`mixed_dtype_fused_layer_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_layer_norm_affine)


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """A layer of :func:`mixed_dtype_fused_rms_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_rms_norm_affine)
