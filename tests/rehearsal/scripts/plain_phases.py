"""Training without DeepSpeed, by torch's wrappers or none: `python plain_phases.py WRAPPER [ROWS]`."""

import os
import sys

import torch
from torch import nn

wrapper = sys.argv[1]
SIZE, ROWS = 1024, int(sys.argv[2]) if len(sys.argv) > 2 else 16384
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*(nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(4))).cuda()
teacher = nn.Linear(SIZE, SIZE).cuda().requires_grad_(False)
if wrapper == "called before":
    model(torch.randn(2, SIZE, device="cuda"))
if wrapper == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
if wrapper == "fsdp":
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}))
if wrapper == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(ROWS, SIZE, device="cuda")
    if wrapper == "frozen teacher":
        target = teacher(x)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
