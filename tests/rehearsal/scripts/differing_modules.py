"""Ranks that do not run the same modules: `python differing_modules.py STAGE WAY`."""

import os
import sys

import deepspeed
import torch
from torch import nn

stage, way = int(sys.argv[1]), sys.argv[2]
SIZE = 64


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))

    def forward(self, x):
        return self.visual(x)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(SIZE, SIZE)
        self.towers = nn.ModuleDict({"images": Tower()})
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, SIZE)

    def forward(self, x, is_odd):
        x = self.embed(x)
        if way == "tower" and is_odd:
            x = x + self.towers["images"](x)
        chosen = [2, 3] if way == "experts" and is_odd else [0, 1]
        for number in chosen:
            x = x + self.experts[number](x)
        for number, layer in enumerate(self.layers):
            if not (way == "dropped layer" and is_odd and number == 1):
                x = layer(x)
        if way == "detached" and is_odd:
            x = x.detach()
        return self.head(x)


deepspeed.init_distributed()
rank = int(os.environ["RANK"])
model = Layers()
config = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(2):
    is_odd = (rank + step) % 2 == 1
    x = torch.randn(4, SIZE, device=engine.device, dtype=torch.bfloat16)
    for _ in range(2 if way == "more passes" and is_odd else 1):
        loss = engine(x, is_odd).float().mean()
    engine.backward(loss)
    engine.step()
