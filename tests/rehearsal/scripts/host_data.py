"""Data on the host beside values that a rehearsal does not have: none of it may be lost. Prints what is."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from host_memory import OPERATORS, touched

torch.set_num_threads(1)  # a forked child has none of OpenMP's threads
COUNT = 1_000_000
device_values = torch.randn(COUNT, device="cuda")


def check(name: str, holds: bool) -> None:
    print(f"{name}: {'kept' if holds else 'LOST'}", flush=True)


child = os.fork()
if child == 0:
    written = torch.empty(COUNT)
    written.numpy()[:] = 7
    written.zero_()
    check("a copy in a forked worker", torch.arange(float(COUNT)).clone()[-1].item() == COUNT - 1)
    check("zeros in a forked worker", written[5].item() == 0)
    os._exit(0)
os.waitpid(child, 0)

staging = torch.empty(25_000).pin_memory()
staging.copy_(device_values[:25_000])
del staging
check("a pinned block used again", torch.arange(25_000.0).pin_memory()[-1].item() == 24_999)

beside = torch.arange(float(COUNT))
beside[:100_000] = device_values[:100_000]
check("data beside a made-up slice", beside[-1].item() == COUNT - 1)

table = torch.arange(float(COUNT))
view = torch.nn.Parameter(table[:10], requires_grad=False)
whole = torch.nn.Parameter(table, requires_grad=False)
check("data that parameters are made of", table[-1].item() == whole[-1].item() == COUNT - 1)

buffer = device_values.cpu()
buffer.copy_(torch.arange(float(COUNT)))
check("data copied over made-up values", buffer[-1].item() == COUNT - 1)

sums = device_values.cpu()
sums.zero_()
sums[3] = 5
check("zeros over made-up values", sums.sum().item() == 5)

pictures = device_values.cpu()[:750_000].view(1, 3, 500, 500)
weight = torch.ones(8, 3, 1, 1, requires_grad=True)
found = torch.nn.functional.conv2d(pictures, weight)  # has no Meta kernel, by one thread
found.sum().backward()
check("shapes that only a kernel tells", found.shape == (1, 8, 500, 500) and weight.grad.shape == weight.shape)

mask = torch.zeros(100_000, dtype=torch.bool, device="cuda")
mask[7] = True
check("a mask made on the device", mask.nonzero().tolist() == [[7]])
mask[3:5].fill_(True)
check("a part of a mask that is filled", mask.nonzero().tolist() == [[3], [4], [7]])

part = torch.arange(float(COUNT))
part[1_000:900_000].zero_()
check("data beside zeros", part[[999, 1_000, 899_999, 900_000]].tolist() == [999, 0, 0, 900_000])

buffer = torch.empty(2**26)
buffer[5_000_000:5_001_000] = torch.arange(1_000.0)
copied = buffer.clone().resize_(2**27)
check("a row of a large buffer", copied.sum().item() == buffer.sum().item() == 499_500)

mask = torch.ones(2**12, 2**12).tril()
check("a mask made of nothing", mask.sum().item() == 2**11 * (2**12 + 1))

found = touched(list(OPERATORS)[::4])
print(*found, sep="\n")
check("the room beside memory that nobody has written", not found)

torch.use_deterministic_algorithms(True)
resident = int(Path("/proc/self/statm").read_text().split()[1])
fresh = torch.empty(2**28)
held = (int(Path("/proc/self/statm").read_text().split()[1]) - resident) * 4096
check("the room beside fresh memory", held < fresh.nbytes // 10)
