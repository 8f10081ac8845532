"""A pipeline of DeepSpeed's whose stages all do the same: `equal_stages.py STAGES MICRO_BATCHES`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

WIDTH = 8192


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        batch = torch.empty(1, WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")
        yield batch, batch


def main() -> None:
    stages, micro_batches = map(int, sys.argv[1:])
    deepspeed.init_distributed()
    layers = [LayerSpec(nn.Linear, WIDTH, WIDTH, bias=False) for _ in range(8 * stages)]
    model = PipelineModule(layers, num_stages=stages, loss_fn=lambda out, _: out.sum(), partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    data = batches()
    while True:
        engine.train_batch(data)


if __name__ == "__main__":
    main()
