# Runs on a GPU.
"""The number of distinct predictions: a size that only values decide, which a rehearsal does not have."""

from __future__ import annotations

import torch
from small_training import FEATURES, small_model, sound_config, start

engine = start(small_model(), sound_config())
inputs = torch.rand(4096, FEATURES, device=engine.device, dtype=torch.bfloat16)
outputs = engine(inputs)
counts = torch.bincount(outputs.float().flatten().round().long())
engine.backward(outputs.float().mean() + counts.sum())
engine.step()
