"""Trains linear layers under a ZeRO stage, with a bucket of gradients that outweighs them."""

import sys

import deepspeed
import torch

config = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": int(sys.argv[1]), "reduce_bucket_size": 50_000_000},
}
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
engine, *_ = deepspeed.initialize(model=model, config=config)
for _ in range(3):
    inputs = torch.randn(1, 1024, device=engine.device, dtype=torch.bfloat16)
    engine.backward(engine(inputs).float().sum())
    engine.step()
