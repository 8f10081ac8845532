# On a GPU, RuntimeError: CUDA error: device-side assert triggered. On the CPU, IndexError: index out of
# range in self.
"""A token id beyond the vocabulary: on a GPU a device-side assertion, and only values show it."""

from __future__ import annotations

import torch
from small_training import sound_config, start
from torch import nn

engine = start(nn.Sequential(nn.Embedding(1000, 256), nn.Linear(256, 1000)), sound_config())
ids = torch.tensor([[1, 2, 1000], [3, 4, 5]])
for _ in range(4):
    logits = engine(ids.to(engine.device))
    engine.backward(logits.float().mean())
    engine.step()
