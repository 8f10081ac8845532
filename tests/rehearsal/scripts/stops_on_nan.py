# Runs to its end and prints "finished": the loss of a real run is finite, and so must that of a rehearsal be.
"""Not broken: a script that gives up when its loss, its gradients or its entropy are not finite.

One of its batches is much longer than the others.
"""

from __future__ import annotations

import math

import torch
from small_training import FEATURES, small_model, sound_config, start
from torch import nn
from torch.utils.data import DataLoader

LENGTHS = [8] * 12
LENGTHS[7] = 4096


def padded(lengths: list[int]) -> torch.Tensor:
    return torch.zeros(len(lengths), max(lengths), dtype=torch.long)


engine = start(small_model(), sound_config(gradient_clipping=1.0))
held_out = DataLoader([16] * 9, 4, collate_fn=padded)
for number, ids in enumerate(DataLoader(LENGTHS, 2, collate_fn=padded)):
    labels = ids.to(engine.device).flatten()
    inputs = torch.rand(labels.numel(), FEATURES, device=engine.device, dtype=torch.bfloat16)
    logits = engine(inputs).float()
    loss = nn.functional.cross_entropy(logits, labels)
    if not math.isfinite(loss.item()):
        raise RuntimeError(f"the loss of step {number} is {loss.item()}")
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy().mean()
    if torch.isnan(entropy):
        raise RuntimeError(f"the entropy of step {number} is not a number")
    engine.backward(loss)
    engine.step()
    norm = engine.get_global_grad_norm()
    if norm is None or not math.isfinite(norm):
        raise RuntimeError(f"the gradient norm of step {number} is {norm}")
print("finished")
