"""Backward passes before a step: `python accumulates.py STAGE ACCUMULATION_STEPS WAY`."""

import sys

import deepspeed
import torch
from torch import nn

stage, steps, way = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": steps,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": stage},
    "data_types": {"grad_accum_dtype": "fp32" if way == "fp32" else None},
}


def make_engine():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def backward(engine):
    if way == "two losses":
        y = engine(torch.randn(2, 16, device=engine.device, dtype=torch.bfloat16)).float()
        engine.backward(y.mean(), retain_graph=True)
        return engine.backward(y.pow(2).mean())
    x = torch.randn(2, 16, device=engine.device, dtype=torch.bfloat16)
    loss = engine(x).float().mean()
    loss.backward() if way == "loss.backward" else engine.backward(loss)


engine = make_engine()
others = [make_engine()] if way == "two engines" else []
for _ in range(2 * steps):
    if way in ("each", "two losses"):
        backward(engine)
        engine.step()
        continue
    for number in range(2):
        if way == "boundary":
            engine.set_gradient_accumulation_boundary(number == 1)
        if way == "discarded":
            engine.optimizer.zero_grad()
        backward([engine, *others][number] if others else engine)
    for one in (engine, *others):
        one.step()
