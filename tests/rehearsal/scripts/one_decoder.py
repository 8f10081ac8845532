"""A decoder in plain torch, trained by the library that --with names.

It asks nothing of transformers, so that what differs between environments comes of torch, DeepSpeed and
accelerate.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HEADS, LAYERS = 8192, 768, 12, 6
MICRO_BATCH, SEQUENCE = 2, 512
ACCUMULATION = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.before_attention(hidden)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.before_mlp(hidden))


class Decoder(nn.Module):
    """54 million parameters; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        logits = self.head(hidden)
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def ids(device: Any) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE), device=device)


def by_deepspeed(stage: int, *, offload: bool = False) -> None:
    import deepspeed

    deepspeed.init_distributed()
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 20_000_000, "overlap_comm": stage > 1}
    if offload:
        zero |= {f"offload_{what}": {"device": "cpu", "pin_memory": True} for what in ("optimizer", "param")}
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
    }
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = Decoder()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(3 * ACCUMULATION):
        engine.backward(engine(ids(engine.device)))
        engine.step()


def by_accelerate() -> None:
    from accelerate import Accelerator, DeepSpeedPlugin

    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=ACCUMULATION, gradient_clipping=1.0)
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin)
    rows = torch.utils.data.DataLoader(
        torch.randint(0, VOCABULARY, (256, SEQUENCE)), batch_size=MICRO_BATCH, shuffle=True
    )
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, rows = accelerator.prepare(model, optimizer, rows)
    for batch in rows:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print("mean loss", accelerator.gather(torch.ones(1, device=accelerator.device)).mean().item())


def by_torch(how: str) -> None:
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model: Any = Decoder().to(device)
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
            device_id=device,
            use_orig_params=True,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16, enabled=how == "ddp"):
            loss = model(ids(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()


WAYS = {
    "zero1": lambda: by_deepspeed(1),
    "zero2": lambda: by_deepspeed(2),
    "zero3": lambda: by_deepspeed(3),
    "offload": lambda: by_deepspeed(3, offload=True),
    "accelerate": by_accelerate,
    "ddp": lambda: by_torch("ddp"),
    "fsdp": lambda: by_torch("fsdp"),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="way", choices=sorted(WAYS), required=True)
    WAYS[parser.parse_args().way]()
