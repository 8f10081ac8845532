"""DeepSpeed's quantizer (ZeRO++ quantised weights and gradients).

Signatures and outputs follow csrc/quantization/pt_binding.cpp. Only what they allocate is real.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from zerokit.rehearsal.stand_ins.registry import op_module
from zerokit.rehearsal.stand_ins.signatures import Given, positional
from zerokit.rehearsal.timing.rank_time import take_time


class QuantizationType(enum.IntEnum):
    """`quantize::Type` of csrc/includes/quantization.h."""

    Symmetric = 0
    Asymmetric = 1


def _kernel(parameters: str, name: str) -> Callable[[Callable[[Given], Any]], Callable[..., Any]]:
    """Makes a function of `Given` a kernel that reads its arguments and writes its results."""

    def launch_with(results: Callable[[Given], Any]) -> Callable[..., Any]:
        @positional(parameters, name)
        def launch(given: Given) -> Any:
            result = results(given)
            made = () if any(result is one for one in given.values()) else (result,)
            take_time(name, list(given.values()), *made)
            return result

        return launch

    return launch_with


_QUANTIZED = "groups num_bits quant_type"


def quantizer() -> ModuleType:
    """`quantize`, `dequantize`, `swizzle_quant`, `quantized_reduction` and their kin."""

    @_kernel(f"input_vals {_QUANTIZED}", "quantize")
    def quantize(given: Given) -> list[Tensor]:
        divisor = 1 if given["num_bits"] == 8 else 2
        shape = _last_dimension_divided(given["input_vals"].shape, divisor)
        return [_int8(shape), _scales(given["groups"], given["quant_type"])]

    @_kernel(f"input_vals {_QUANTIZED} pipeline_size nodes devices_per_node", "swizzle_quant")
    def swizzle_quant(given: Given) -> list[Tensor]:
        elements = given["input_vals"].numel() // (8 // given["num_bits"])
        return [_int8((elements,)), _scales(given["groups"], given["quant_type"])]

    @_kernel(
        "input_vals input_scales in_groups out_groups num_bits quant_type devices_per_node", "quantized_reduction"
    )
    def quantized_reduction(given: Given) -> list[Tensor]:
        shape = _last_dimension_divided(given["input_vals"].shape, given["devices_per_node"])
        return [_int8(shape), _scales(given["out_groups"], given["quant_type"])]

    return op_module(
        "quantizer",
        QuantizationType=QuantizationType,
        Symmetric=QuantizationType.Symmetric,
        Asymmetric=QuantizationType.Asymmetric,
        quantize=quantize,
        dequantize=_dequantize("dequantize", torch.float16),
        dequantize_fp32=_dequantize("dequantize_fp32", torch.float32),
        swizzle_quant=swizzle_quant,
        quantized_reduction=quantized_reduction,
    )


def _dequantize(name: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    @_kernel(f"data params {_QUANTIZED}", name)
    def dequantize(given: Given) -> Tensor:
        *outer, last = given["data"].shape
        shape = (*outer, last * (1 if given["num_bits"] == 8 else 2))
        return torch.empty(shape, dtype=dtype, device="cuda")

    return dequantize


def _scales(groups: int, quant_type: QuantizationType) -> Tensor:
    columns = 2 if quant_type == QuantizationType.Asymmetric else 1
    return torch.empty((groups, columns), dtype=torch.float32, device="cuda")


def _int8(shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=torch.int8, device="cuda")


def _last_dimension_divided(shape: Sequence[int], divisor: int) -> tuple[int, ...]:
    *outer, last = shape
    return (*outer, last // divisor)
