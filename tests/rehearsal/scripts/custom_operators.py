"""Operators whose kernels call a CUDA library that is not there, with and without a fake implementation."""

from __future__ import annotations

import ctypes
import sys

import torch

library = torch.library.Library("outside", "DEF")
library.define("normed(Tensor values, Tensor(a!) counted) -> (Tensor, Tensor)")
library.define("unsized(Tensor values) -> Tensor")


def calls_cuda(values: torch.Tensor, *_: torch.Tensor) -> None:
    torch.empty_like(values)
    ctypes.CDLL("libcudart.so.0").launch()


library.impl("normed", calls_cuda, "CUDA")
library.impl("unsized", calls_cuda, "CUDA")


@torch.library.register_fake("outside::normed", lib=library)
def _normed(values: torch.Tensor, counted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(values, dtype=torch.float32), values.new_empty(values.shape[0])


values = torch.zeros(1024, 512, dtype=torch.bfloat16, device="cuda")
counted = torch.full((4,), 7, device="cuda")
before = torch.cuda.memory_allocated()
result, sums = torch.ops.outside.normed(values, counted)
print("normed", tuple(result.shape), result.dtype, torch.cuda.memory_allocated() - before, counted.tolist())
if "unsized" in sys.argv:
    torch.ops.outside.unsized(values)
