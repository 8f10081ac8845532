# Runs to its end and prints "trained": nothing is wrong with it, but DeepSpeed never made a step.
"""A script that trains with plain torch: it ends by itself, and there are no steps to report."""

from __future__ import annotations

import torch
from small_training import FEATURES, join_ranks, small_model

join_ranks()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = small_model().to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.rand(2, FEATURES, device=device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
