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
from zerokit.rehearsal.stand_ins.signatures import Given, with_parameters

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


class _NormFunction(torch.autograd.Function):
    """A norm of the input and its weights; the normalized shape, eps and `memory_efficient` follow them."""

    run: Any
    run_backward: Any
    weights: int

    @classmethod
    def forward(cls, ctx: Any, *arguments: Any) -> Tensor:
        input, *weights = (one.contiguous() for one in arguments[: 1 + cls.weights])
        shape, eps, memory_efficient = (*arguments[1 + cls.weights :], False)[:3]
        output: Tensor
        output, *statistics = cls.run(input, shape, *weights, eps)
        if memory_efficient:
            statistics[:-1] = [None for _ in statistics[:-1]]
        ctx.save_for_backward(output if memory_efficient else input, *weights, *statistics)
        ctx.rest, ctx.arguments, ctx.of = (shape, eps, memory_efficient), len(arguments), cls
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        kept, *others = ctx.saved_tensors
        weights, statistics = others[: ctx.of.weights], others[ctx.of.weights :]
        shape, *rest = ctx.rest
        found = ctx.of.run_backward(grad.contiguous(), *statistics, kept, shape, *weights, *rest)
        gradients = found if weights else [found]
        return *gradients, *(None for _ in range(ctx.arguments - len(gradients)))


class _LayerNormFunction(_NormFunction):
    run, run_backward = staticmethod(kernels.forward), staticmethod(kernels.backward)
    weights = 0


class _RMSNormFunction(_NormFunction):
    run, run_backward = staticmethod(kernels.rms_forward), staticmethod(kernels.rms_backward)
    weights = 0


class FusedLayerNormAffineFunction(_NormFunction):
    """A layer norm with weight and bias."""

    run, run_backward = staticmethod(kernels.forward_affine), staticmethod(kernels.backward_affine)
    weights = 2


class FusedRMSNormAffineFunction(_NormFunction):
    """A root-mean-square norm with a weight."""

    run, run_backward = staticmethod(kernels.rms_forward_affine), staticmethod(kernels.rms_backward_affine)
    weights = 1


class FusedLayerNormAffineMixedDtypesFunction(FusedLayerNormAffineFunction):
    """A norm with the weight's dtype as output dtype."""

    run = staticmethod(kernels.forward_affine_mixed_dtypes)


class FusedRMSNormAffineMixedDtypesFunction(FusedRMSNormAffineFunction):
    """A norm with the weight's dtype as output dtype."""

    run = staticmethod(kernels.rms_forward_affine_mixed_dtypes)


def _apply(function: Any, given: Given) -> Tensor:
    """Under autocast all tensors are cast before, as the originals do."""
    arguments = list(given.values())
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        is_float = [isinstance(one, Tensor) and one.is_floating_point() for one in arguments]
        arguments = [
            one.to(dtype) if is_cast else one for one, is_cast in zip(arguments, is_float, strict=True)
        ]
    with torch.amp.autocast("cuda", enabled=False):
        result: Tensor = function.apply(*arguments)
    return result


_OPTIONS = "normalized_shape eps=1e-6 memory_efficient=False"


@with_parameters(f"input {_OPTIONS}")
def fused_layer_norm(given: Given) -> Tensor:
    """The layer norm of input [..., *normalized_shape], in its dtype."""
    return _apply(_LayerNormFunction, given)


@with_parameters(f"input weight bias {_OPTIONS}")
def fused_layer_norm_affine(given: Given) -> Tensor:
    """As :func:`fused_layer_norm`, with weight and bias."""
    return _apply(FusedLayerNormAffineFunction, given)


@with_parameters(f"input weight bias {_OPTIONS}")
def mixed_dtype_fused_layer_norm_affine(given: Given) -> Tensor:
    """As :func:`fused_layer_norm_affine`, in the weight's dtype."""
    return _apply(FusedLayerNormAffineMixedDtypesFunction, given)


@with_parameters(f"input {_OPTIONS}")
def fused_rms_norm(given: Given) -> Tensor:
    """The root-mean-square norm of input [..., *normalized_shape], in its dtype."""
    return _apply(_RMSNormFunction, given)


@with_parameters(f"input weight {_OPTIONS}")
def fused_rms_norm_affine(given: Given) -> Tensor:
    """As :func:`fused_rms_norm`, with a weight."""
    return _apply(FusedRMSNormAffineFunction, given)


@with_parameters(f"input weight {_OPTIONS}")
def mixed_dtype_fused_rms_norm_affine(given: Given) -> Tensor:
    """As :func:`fused_rms_norm_affine`, in the weight's dtype."""
    return _apply(FusedRMSNormAffineMixedDtypesFunction, given)


class _Norm(nn.Module):
    _names: tuple[str, ...]
    _plain: Any
    _affine: Any
    _of_torch: Any

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
        for name in self._names:
            self.register_parameter(
                name, nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones, and zeros for a bias."""
        for name, parameter in self.named_parameters(recurse=False):
            (nn.init.zeros_ if name == "bias" else nn.init.ones_)(parameter)

    def forward(self, input: Tensor) -> Tensor:
        weights = [getattr(self, name) for name in self._names] if self.elementwise_affine else []
        if not input.is_cuda or torch.compiler.is_compiling():  # the originals compute by torch's operators
            run = self._of_torch
            result: Tensor = run(input, self.normalized_shape, *weights, eps=self.eps)
        else:
            run = self._affine if weights else self._plain
            result = run(input, *weights, self.normalized_shape, self.eps, self.memory_efficient)
        return result

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_Norm):
    """A layer of :func:`fused_layer_norm_affine`."""

    _names = ("weight", "bias")
    _plain, _affine = staticmethod(fused_layer_norm), staticmethod(fused_layer_norm_affine)
    _of_torch = staticmethod(functional.layer_norm)


class FusedRMSNorm(_Norm):
    """A layer of :func:`fused_rms_norm_affine`."""

    _names = ("weight",)
    _plain, _affine = staticmethod(fused_rms_norm), staticmethod(fused_rms_norm_affine)
    _of_torch = staticmethod(functional.rms_norm)


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
        if not others.get("elementwise_affine", True):  # the originals ignore all other options
            raise RuntimeError(f"{type(self).__name__} does not support `elementwise_affine = False`")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_Mixed, FusedLayerNorm):
    """A layer of :func:`mixed_dtype_fused_layer_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_layer_norm_affine)


class MixedFusedRMSNorm(_Mixed, FusedRMSNorm):
    """A layer of :func:`mixed_dtype_fused_rms_norm_affine`."""

    _affine = staticmethod(mixed_dtype_fused_rms_norm_affine)
