"""Prints what its launcher gave it; with --train, trains as DeepSpeed-Chat's scripts do, by --local_rank."""

from __future__ import annotations

import argparse
import json
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--train", action="store_true")
arguments = parser.parse_args()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
told = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_") or name in names}
print("told", json.dumps({"argv": sys.argv[1:], **told}))

if arguments.train:
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator()
    model = nn.Linear(512, 512)
    data = torch.utils.data.DataLoader(torch.rand(64, 512), batch_size=2)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    for batch in data:
        inputs = batch.to(next(model.parameters()).dtype)
        accelerator.backward(model(inputs).float().mean())
        optimizer.step()
        optimizer.zero_grad()
