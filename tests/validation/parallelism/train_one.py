"""Trains the model of a described run on a part of each sequence, or on a part of each layer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch

from tests.validation.memory import train_one


def main() -> None:
    point = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    deepspeed.init_distributed()
    size = point["sequence"]
    engine = train_one.build(point)
    shape = (point["micro_batch_size"], point["seq_len"] // size)
    ids = torch.randint(0, 100, shape, device=engine.device)
    start = shape[1] * (engine.global_rank % size)
    positions = torch.arange(start, start + shape[1], device=engine.device).expand_as(ids)
    given = {"position_ids": positions} if size > 1 else {}
    engine.train()
    for _ in range(point["steps"] * point["accumulation"]):
        loss = engine(input_ids=ids, labels=ids, **given).loss
        engine.backward(loss)
        del loss
        engine.step()


if __name__ == "__main__":
    main()
