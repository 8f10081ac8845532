"""The quantizer of ZeRO++ in plain torch. DeepSpeed has it only in CUDA (`deepspeed/ops/csrc/quantization`).

Symmetric quantization by groups, as in these kernels: each group has one scale, which maps the largest
magnitude to the end of the range. Two 4-bit values share a byte. Only the rounding of the last bit differs.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor


def _quantized(values: Tensor, groups: int, bits: int) -> tuple[Tensor, Tensor]:
    grouped = values.detach().float().reshape(groups, -1)
    largest = 2 ** (bits - 1) - 1
    scales = grouped.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest
    # The kernels return scales of shape (groups, 1). Here they are flat: gloo compares shapes, NCCL does not.
    return (grouped / scales).round().clamp(-largest, largest).to(torch.int8), scales.flatten()


def _packed(values: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values
    low, high = values[:, 0::2] & 0x0F, values[:, 1::2] << 4
    return low | high


def _unpacked(values: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return values
    # Shifting left, then right, extends the sign of the lower four bits.
    return torch.stack([values << 4 >> 4, values >> 4], dim=-1).flatten(1)


def quantize(values: Tensor, groups: int, bits: int, kind: int) -> list[Tensor]:
    """Return int8 of the shape of `values` (the last dimension halved for 4 bits), and a scale per group."""
    quantized, scales = _quantized(values, groups, bits)
    *outer, last = values.shape
    return [_packed(quantized, bits).reshape(*outer, last * bits // 8), scales]


def dequantize(values: Tensor, scales: Tensor, groups: int, bits: int, kind: int) -> Tensor:
    """Return fp16 of the shape that was quantized."""
    *outer, last = values.shape
    unpacked = _unpacked(values.reshape(groups, -1), bits).float() * scales.reshape(groups, 1)
    return unpacked.reshape(*outer, last * 8 // bits).half()


def swizzle_quant(
    values: Tensor, groups: int, bits: int, kind: int, pipeline: int, nodes: int, per_node: int
) -> list[Tensor]:
    """Quantize a flat tensor, with the parts for the devices of one node next to each other."""
    parts = values.detach().reshape(nodes, per_node, -1).transpose(0, 1).reshape(-1)
    quantized, scales = _quantized(parts, groups, bits)
    return [_packed(quantized, bits).reshape(-1), scales]


def quantized_reduction(
    values: Tensor, scales: Tensor, in_groups: int, out_groups: int, bits: int, kind: int, per_node: int
) -> list[Tensor]:
    """Return the mean over the devices of a node, quantized again."""
    full = dequantize(values, scales, in_groups, bits, kind).float().reshape(per_node, -1).mean(dim=0)
    quantized, out_scales = _quantized(full, out_groups, bits)
    return [_packed(quantized, bits).reshape(-1), out_scales]


def install() -> None:
    """Replace DeepSpeed's compiled quantizer."""
    from deepspeed.runtime.comm import coalesced_collectives
    from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer

    module = ModuleType("quantizer", __doc__)
    for function in (quantize, dequantize, swizzle_quant, quantized_reduction):
        setattr(module, function.__name__, function)
    module.Symmetric = 0  # type: ignore[attr-defined]
    CUDAQuantizer.quantizer_cuda_module = module
    coalesced_collectives.quantizer_module = module
