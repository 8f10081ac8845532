"""A step whose time can be worked out by hand: docs/explanation/how-time-is-predicted.md does."""

import os
import time

import torch
import torch.distributed as dist

SIDE = 8192

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
inputs, grads = (torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
weight = torch.nn.Parameter(torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
for step in range(2):
    torch.cuda.synchronize()
    start = time.perf_counter()
    (inputs @ weight).backward(grads)
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"step {step}: {1e3 * (time.perf_counter() - start):.3f} ms", flush=True)
