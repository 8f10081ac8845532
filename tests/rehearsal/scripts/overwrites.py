"""Clears its output folder, as many scripts do, and writes into it in every way; then trains."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import deepspeed
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

shutil.rmtree("runs")
Path("runs/new").mkdir(parents=True)
with Path("log.txt").open("a") as log:
    log.write("another\n")
print("log", Path("log.txt").read_text().split())
Path("best.txt").rename("runs/best.txt")
save_file({"ids": np.arange(8)}, "runs/ids.safetensors")
pyarrow.parquet.write_table(pyarrow.table({"ids": list(range(8))}), "runs/ids.parquet")
print("rust", int(load_file("runs/ids.safetensors")["ids"].sum()))
print("c++", pyarrow.parquet.read_table("runs/ids.parquet").num_rows)
array = np.memmap("array.bin", dtype=np.uint8, mode="r+")
array[0] = 7
array.flush()
with sqlite3.connect("runs.db") as database:
    database.execute("insert into runs values (2)")
print("rows", sqlite3.connect("runs.db").execute("select * from runs").fetchall())
subprocess.run(["sh", "-c", "rm notes.txt; mv data.csv data.old"], check=True, env={"PATH": os.environ["PATH"]})
Path(sys.argv[1], "kept.txt").write_text("temporary")
print("seen", *sorted(map(str, Path().rglob("*"))))

model = nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
    },
)
for _ in range(2):
    engine.backward(engine(torch.rand(2, 64, device=engine.device, dtype=torch.bfloat16)).float().mean())
    engine.step()
