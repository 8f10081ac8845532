"""Operators whose kernels call a CUDA library that is not there, with and without a fake implementation."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

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


# As a library of C++ registers its kernels, which torch.library does not see.
library.define("compiled(Tensor values) -> Tensor")
compiled = torch._C._dispatch_library("IMPL", "outside", "CUDA", __file__, 1)
compiled.impl("compiled", "CUDA", calls_cuda)


@torch.library.register_fake("outside::compiled", lib=library)
def _compiled(values: torch.Tensor) -> torch.Tensor:
    return values.new_empty(values.shape[0], 3)


library.define("loaded(Tensor values) -> Tensor")
compiled.impl("loaded", "CUDA", calls_cuda)
shapes = torch._C._dispatch_library("IMPL", "outside", "Meta", __file__, 1)
shapes.impl("loaded", "Meta", lambda values: values.new_empty(5))


boxes = torch.library.Library("torchvision", "DEF")
boxes.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
boxes.impl("nms", lambda dets, scores, threshold: torch.nonzero(scores > threshold).flatten(), "CPU")
torch.library.register_fake("torchvision::nms", lambda dets, *_: dets.new_empty(0), lib=boxes)

torch.ops.load_library(str(Path(torch.__file__).parent / "lib" / "libtorch_global_deps.so"))
values = torch.zeros(1024, 512, dtype=torch.bfloat16, device="cuda")
counted = torch.full((4,), 7, device="cuda")
before = torch.cuda.memory_allocated()
result, sums = torch.ops.outside.normed(values, counted)
print("normed", tuple(result.shape), result.dtype, torch.cuda.memory_allocated() - before, counted.tolist())
print("loaded", tuple(torch.ops.outside.loaded(values).shape))
print("compiled", tuple(torch.ops.outside.compiled(values).shape))
corners, scores = torch.rand(6, 4, device="cuda"), torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.1], device="cuda")
print("known boxes", torch.ops.torchvision.nms(corners, scores, 0.5).tolist())
made_up = (values[:6, :4] @ torch.nn.Linear(4, 1024, device="cuda", dtype=torch.bfloat16).weight.T)[:, 0]
print("boxes", torch.ops.torchvision.nms(corners, made_up, 0.5).tolist())
if "unsized" in sys.argv:
    torch.ops.outside.unsized(values)
