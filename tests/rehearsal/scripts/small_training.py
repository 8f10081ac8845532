"""What the broken scripts beside this file share: a small model, its data and a sound ds_config."""

from __future__ import annotations

import os
from typing import Any

import deepspeed
import torch
from torch import nn

FEATURES = 512
"""Width of the model and of its data: (micro_batch_size, FEATURES) float32 in, one class of FEATURES out."""


def sound_config(**changes: Any) -> dict[str, Any]:
    """A ds_config that DeepSpeed takes at any world size, with `changes` to its top-level keys."""
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        **changes,
    }


def small_model() -> nn.Module:
    """Two matrices of a megabyte each."""
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES))


def join_ranks() -> None:
    """Start the process group; a script that was started by no launcher is rank 0 of 1."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29500}.items():
        os.environ.setdefault(name, f"{value}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    deepspeed.init_distributed()


def start(model: nn.Module, config: dict[str, Any]) -> deepspeed.DeepSpeedEngine:
    """Join the ranks and wrap `model` in an engine."""
    join_ranks()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return engine


def step(engine: deepspeed.DeepSpeedEngine, *, width: int = FEATURES) -> torch.Tensor:
    """One optimizer step on random data of `width` features; returns the loss."""
    inputs = torch.rand(2, width, device=engine.device, dtype=torch.bfloat16)
    labels = torch.zeros(2, dtype=torch.long, device=engine.device)
    loss = nn.functional.cross_entropy(engine(inputs).float(), labels)
    engine.backward(loss)
    engine.step()
    return loss
