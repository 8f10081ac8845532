# NotImplementedError: Could not run 'broken::fused_norm' with arguments from the 'CUDA' backend
"""An op that was declared, as a package does before it loads its compiled kernels, and never given any."""

from __future__ import annotations

import torch
from small_training import FEATURES, small_model, sound_config, start

library = torch.library.Library("broken", "DEF")
library.define("fused_norm(Tensor values, float epsilon) -> Tensor")

engine = start(small_model(), sound_config())
for _ in range(4):
    inputs = torch.rand(2, FEATURES, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(torch.ops.broken.fused_norm(inputs, 1e-5)).float().mean())
    engine.step()
