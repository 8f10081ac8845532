"""Trains under torch's profilers of the GPU and says what they saw."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile

weight = torch.ones(64, 64, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)


def step() -> None:
    (weight @ weight).sum().backward()
    optimizer.step()


with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as by_kineto:
    step()
with torch.autograd.profiler.profile(use_device="cuda") as by_events:
    step()
names = [{event.key for event in profiler.key_averages()} for profiler in (by_kineto, by_events)]
print("profiled", ["aten::mm" in seen for seen in names], file=sys.stderr, flush=True)
