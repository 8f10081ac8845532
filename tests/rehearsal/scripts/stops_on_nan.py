# Runs to its end and prints "finished": the loss of a real run is finite, and so must that of a rehearsal be.
"""Not broken: a script that gives up when its loss, its gradients or its entropy are not finite."""

from __future__ import annotations

import math

import torch
from small_training import FEATURES, small_model, sound_config, start
from torch import nn

engine = start(small_model(), sound_config(gradient_clipping=1.0))
for number in range(4):
    inputs = torch.rand(2, FEATURES, device=engine.device, dtype=torch.bfloat16)
    labels = torch.zeros(2, dtype=torch.long, device=engine.device)
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
