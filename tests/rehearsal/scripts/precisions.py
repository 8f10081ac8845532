"""Training in a precision: `python precisions.py WAY`."""

import sys

import deepspeed
import torch
from torch import nn

way = sys.argv[1]
model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 1))
if way.startswith("plain"):
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    if way == "plain TF32":
        torch.backends.cuda.matmul.allow_tf32 = True
    if way == "plain newer TF32":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16, enabled=way == "plain autocast"):
            loss = model(torch.randn(64, 512, device="cuda")).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.exit()
config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 1},
}
if way in ("bf16", "fp32 head", "fp32 teacher"):
    config["bf16"] = {"enabled": True}
if way == "turned off":
    config["bf16"] = {"enabled": False}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
head = nn.Linear(1, 64).cuda()
teacher = nn.Sequential(*(nn.Linear(512, 512) for _ in range(9))).cuda()
for _ in range(2):
    x = torch.randn(64, 512, device=engine.device, dtype=next(engine.module.parameters()).dtype)
    y = engine(x).float()
    if way == "fp32 teacher":
        with torch.no_grad():
            target = teacher(x.float()).mean()
        y = y - target
    engine.backward((head(y) if way == "fp32 head" else y).mean())
    engine.step()
