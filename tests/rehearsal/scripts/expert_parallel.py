"""A layer of experts that lie on different ranks, with a capacity that fixes what each is sent."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

FEATURES, MICRO_BATCH, TOKENS = 264, 2, 161


class Model(nn.Module):
    """Two layers with experts between two that all ranks have."""

    def __init__(self, experts: int, size: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        expert = nn.Sequential(nn.Linear(FEATURES, 3 * FEATURES), nn.ReLU(), nn.Linear(3 * FEATURES, FEATURES))
        self.moe = MoE(FEATURES, expert, num_experts=experts, ep_size=size, k=1, capacity_factor=1.25)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.moe(self.first(inputs))[0])
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(7)
    model = Model(args.experts, args.size)
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 700_001, "allgather_bucket_size": 900_002},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    generator = torch.Generator().manual_seed(engine.global_rank)
    for _ in range(args.steps):
        inputs = torch.randn(MICRO_BATCH, TOKENS, FEATURES, generator=generator).to(engine.device).bfloat16()
        engine.backward(engine(inputs).float().square().mean())
        engine.step()


if __name__ == "__main__":
    main()
