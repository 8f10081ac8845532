"""Ulysses: each rank holds a part of every sequence, and in attention all of it for some of the heads."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel import parallel_state_sp as mpu
from deepspeed.sequence.layer import DistributedAttention
from torch import nn

VOCABULARY, WIDTH, HEADS, MICRO_BATCH = 3001, 264, 8, 2


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Of (batch, sequence, heads, width): plain matrix products, which the CPU can compute."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    scores = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
    return (scores @ value).transpose(1, 2).contiguous()


class Layer(nn.Module):
    """Attention and two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.attention = DistributedAttention(attention, mpu.get_sequence_parallel_group())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        parts = self.query_key_value(hidden).view(batch, length, 3, HEADS, WIDTH // HEADS).unbind(2)
        hidden = hidden + self.attention(*(part.contiguous() for part in parts), 0).reshape(hidden.shape)
        result: torch.Tensor = hidden + self.down(torch.relu(self.up(hidden)))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=320)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    deepspeed.init_distributed()
    mpu.initialize_sequence_parallel(args.size)
    torch.manual_seed(7)
    layers = [nn.Embedding(VOCABULARY, WIDTH), Layer(), Layer(), nn.Linear(WIDTH, VOCABULARY)]
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 700_001, "allgather_bucket_size": 900_002},
    }
    engine, *_ = deepspeed.initialize(model=nn.Sequential(*layers), config=config, mpu=mpu)
    generator = torch.Generator().manual_seed(engine.global_rank)
    for _ in range(args.steps):
        shape = (MICRO_BATCH, args.sequence // args.size)
        ids = torch.randint(0, VOCABULARY, shape, generator=generator).to(engine.device)
        logits = engine(ids)
        engine.backward(nn.functional.cross_entropy(logits.view(-1, VOCABULARY).float(), ids.view(-1)))
        engine.step()


if __name__ == "__main__":
    main()
