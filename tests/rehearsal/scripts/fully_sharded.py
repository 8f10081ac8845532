"""Trains linear layers under FSDP 2, which holds parameters and optimizer states as DTensors."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    model(torch.randn(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
