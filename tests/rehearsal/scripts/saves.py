"""Saves and reads data, as scripts do that cache what they tokenise; then trains and saves its model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
from safetensors.torch import load_file, save_file, save_model
from torch import nn

FEATURES = 512


class Prepared(torch.utils.data.Dataset[Any]):
    """What DeepSpeed-Chat's scripts save: a data set object with lists of tensors."""

    def __init__(self) -> None:
        self.rows = [torch.arange(start, start + FEATURES) for start in range(64)]
        self.lengths = {"train": len(self.rows)}

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


Path("data.pt").unlink(missing_ok=True)
torch.save(Prepared(), "data.pt")
prepared = torch.load("data.pt", weights_only=False)
save_file(tensors={"ids": torch.stack(prepared.rows)}, filename="data.safetensors")
print("sum", int(load_file("data.safetensors")["ids"].sum()))
with Path("ids.pt").open("wb") as file:
    torch.save(torch.stack(prepared.rows), file)

model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
torch.save(model.state_dict(), "host_weights.pt")
model.load_state_dict(torch.load("host_weights.pt", map_location="cpu", weights_only=True, mmap=True))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    },
)
for _ in range(2):
    loss = engine(torch.rand(2, FEATURES, device=engine.device, dtype=torch.bfloat16)).float().mean()
    engine.backward(loss)
    engine.step()
buffer = io.BytesIO()
torch.save({"note": "kept in memory"}, buffer)
torch.save({"model": [{"weights": engine.module.state_dict()}], "step": 2}, "weights.pt")
read = torch.load("weights.pt", weights_only=False)
(weights,) = (one["weights"] for one in read["model"])
print("read", read["step"], {(str(one.device), str(one.dtype), tuple(one.shape)) for one in weights.values()})
with Path("opened.pt").open("wb") as file:
    torch.save([one.data for one in engine.module.parameters()], file)
save_file(dict(engine.module.state_dict()), "weights.safetensors")
save_model(model=engine.module, filename="model.safetensors")
torch.save({"step": 2, "best": 0.5}, "progress.pt")
engine.save_checkpoint("checkpoint")
convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir="checkpoint", output_dir="merged")
try:  # not one that this script has saved
    convert_zero_checkpoint_to_fp32_state_dict("earlier", "of_earlier")
except ValueError as error:
    print("merges", error)
print("in memory", buffer.tell() > 0)
