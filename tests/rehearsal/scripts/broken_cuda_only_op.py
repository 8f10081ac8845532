# Runs on a GPU. Without, NotImplementedError: Could not run 'broken::halve' with arguments from the 'CPU'
# backend.
"""An op whose only kernel is CUDA source compiled at run time: nothing tells the shape of what it returns."""

from __future__ import annotations

import torch
from small_training import FEATURES, small_model, sound_config, start
from torch import nn

SOURCE = """
extern "C" __global__ void halve(const float* from, float* to, int count) {
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) to[place] = 0.5f * from[place];
}
"""
library = torch.library.Library("broken", "DEF")
library.define("halve(Tensor values) -> Tensor")


def halve(values: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(values)
    kernel = torch.cuda._compile_kernel(SOURCE, "halve")
    kernel(((values.numel() + 255) // 256, 1, 1), (256, 1, 1), (values, result, values.numel()))
    return result


library.impl("halve", halve, "CUDA")

engine = start(small_model(), sound_config())
for _ in range(4):
    inputs = torch.rand(2, FEATURES, device=engine.device)
    halved = torch.ops.broken.halve(inputs).bfloat16()
    labels = torch.zeros(2, dtype=torch.long, device=engine.device)
    engine.backward(nn.functional.cross_entropy(engine(halved).float(), labels))
    engine.step()
