"""A pipeline of DeepSpeed's: a layer of embeddings, blocks whose widths differ, and a head with the loss."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

VOCABULARY, WIDTH, SEQUENCE, MICRO_BATCH = 3001, 264, 161, 2


class Block(nn.Module):
    """A residual layer; `factor` says how wide it is inside."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, factor * WIDTH)
        self.down = nn.Linear(factor * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = hidden + self.down(torch.relu(self.up(hidden)))
        return result


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1))


def batches(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        ids = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE), generator=generator)
        yield ids, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    deepspeed.init_distributed()
    layers = [
        LayerSpec(nn.Embedding, VOCABULARY, WIDTH),
        *(LayerSpec(Block, 2 + number) for number in range(6)),
        LayerSpec(nn.Linear, WIDTH, VOCABULARY),
    ]
    model = PipelineModule(layers, num_stages=args.stages, loss_fn=loss_of, partition_method="uniform")
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 700_001, "allgather_bucket_size": 900_002},
        "gradient_clipping": 1.0,
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    data = batches(engine.global_rank)
    for _ in range(args.steps):
        loss = engine.train_batch(data)
    print(f"rank {engine.global_rank}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
