"""DeepSpeed's quantizer (ZeRO++ quantised weights and gradients) and fp_quantizer (FP8/FP6 linear layers).

Signatures and outputs follow csrc/quantization/pt_binding.cpp and csrc/fp_quantizer/fp_quantize.cpp.
Only what they allocate is real.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.timing.rank_time import take_time

P = ParamSpec("P")
T = TypeVar("T")


class QuantizationType(enum.IntEnum):
    """`quantize::Type` of csrc/includes/quantization.h."""

    Symmetric = 0
    Asymmetric = 1


def quantizer() -> ModuleType:
    """`quantize`, `dequantize`, `swizzle_quant`, `quantized_reduction` and their kin."""

    def quantize(
        input_vals: Tensor, groups: int, num_bits: int, quant_type: QuantizationType, /
    ) -> list[Tensor]:
        scales = _scales(groups, quant_type)
        return [_int8(_last_dimension_divided(input_vals.shape, 1 if num_bits == 8 else 2)), scales]

    def dequantize(
        data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: QuantizationType, /
    ) -> Tensor:
        return _dequantized(data, num_bits, torch.float16)

    def dequantize_fp32(
        data: Tensor, params: Tensor, groups: int, num_bits: int, quant_type: QuantizationType, /
    ) -> Tensor:
        return _dequantized(data, num_bits, torch.float32)

    def dequantize_to_half(
        data: Tensor, scales: Tensor, minima: Tensor, num_group: int, group_size: int, /
    ) -> Tensor:
        return torch.empty((num_group, group_size), dtype=torch.float16, device="cuda")

    def swizzle_quant(
        input_vals: Tensor,
        groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        pipeline_size: int,
        nodes: int,
        devices_per_node: int,
        /,
    ) -> list[Tensor]:
        scales = _scales(groups, quant_type)
        return [_int8((input_vals.numel() // (8 // num_bits),)), scales]

    def quantized_reduction(
        input_vals: Tensor,
        input_scales: Tensor,
        in_groups: int,
        out_groups: int,
        num_bits: int,
        quant_type: QuantizationType,
        devices_per_node: int,
        /,
    ) -> list[Tensor]:
        scales = _scales(out_groups, quant_type)
        return [_int8(_last_dimension_divided(input_vals.shape, devices_per_node)), scales]

    return op_module(
        "quantizer",
        QuantizationType=QuantizationType,
        Symmetric=QuantizationType.Symmetric,
        Asymmetric=QuantizationType.Asymmetric,
        quantize=_timed(quantize),
        dequantize=_timed(dequantize),
        dequantize_fp32=_timed(dequantize_fp32),
        dequantize_int4_to_half_experimental=_timed(dequantize_to_half),
        dequantize_int8_to_half_experimental=_timed(dequantize_to_half),
        swizzle_quant=_timed(swizzle_quant),
        quantized_reduction=_timed(quantized_reduction),
    )


def fp_quantizer() -> ModuleType:
    """`quantize`, `dequantize`, `selective_dequantize` (all write into given tensors) and `get_scales` (a
    view)."""

    def quantize(
        out: Tensor,
        val: Tensor,
        group_size: int,
        stochastic_rounding: int,
        q_bits: int,
        q_mantisa_bits: int,
        /,
    ) -> Tensor:
        return out

    def dequantize(
        val: Tensor, val_q: Tensor, group_size: int, q_mantisa_bits: int, q_exponent_bits: int, /
    ) -> None: ...

    def selective_dequantize(
        val: Tensor,
        val_q: Tensor,
        indexes: Tensor,
        group_size: int,
        q_mantisa_bits: int,
        q_exponent_bits: int,
        /,
    ) -> None: ...

    def get_scales(out: Tensor, num_groups: int, /) -> Tensor:
        as_float = out.view(-1).view(torch.float32)
        return as_float.as_strided((num_groups, 1), (out.stride(0) // 4, 1))

    return op_module(
        "fp_quantizer",
        quantize=_timed(quantize),
        dequantize=_timed(dequantize),
        selective_dequantize=_timed(selective_dequantize),
        get_scales=get_scales,
    )


def _timed(kernel: Callable[P, T]) -> Callable[P, T]:
    """`kernel`, as one kernel that reads its arguments and writes its results."""

    @functools.wraps(kernel)
    def launch(*arguments: P.args, **given: P.kwargs) -> T:
        result = kernel(*arguments, **given)
        made = () if any(result is one for one in arguments) else (result,)
        take_time(kernel.__name__, arguments, *made)
        return result

    return launch


def _dequantized(data: Tensor, num_bits: int, dtype: torch.dtype) -> Tensor:
    *outer, last = data.shape
    return torch.empty((*outer, last * (1 if num_bits == 8 else 2)), dtype=dtype, device="cuda")


def _scales(groups: int, quant_type: QuantizationType) -> Tensor:
    columns = 2 if quant_type == QuantizationType.Asymmetric else 1
    return torch.empty((groups, columns), dtype=torch.float32, device="cuda")


def _int8(shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=torch.int8, device="cuda")


def _last_dimension_divided(shape: Sequence[int], divisor: int) -> tuple[int, ...]:
    *outer, last = shape
    return (*outer, last // divisor)
