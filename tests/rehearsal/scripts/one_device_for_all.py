"""Every rank of a node trains on its own GPU, but keeps its data on the first."""

from __future__ import annotations

import torch
from small_training import FEATURES, small_model, sound_config, start, step

engine = start(small_model(), sound_config())
kept = torch.empty(FEATURES, FEATURES, device="cuda:0")
for _ in range(4):
    step(engine)
