"""Compares ZeRO-3 training with and without generation, then has rank 1 fail inside and before: ``FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoModelForCausalLM

import zerokit
from tests.validation.generation.in_training import CASES, train
from zerokit.errors import ConfigError, RankError
from zerokit.generation.gathered import gathered, steps_with_others

CASE = "3, prefetching and persistent parameters"

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    without, found = (train(folder, CASES[CASE], generates=generates) for generates in (False, True))
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True} | {
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.train()
    raised = "nothing"
    try:
        with gathered(engine) as whole:
            assert not steps_with_others(whole)
            assert not whole.training
            if rank == 1:
                raise ValueError("no words")
    except (ValueError, RankError) as error:
        raised = str(error)
    after = {"raised": raised, "is_partitioned": steps_with_others(engine.module), "trains": engine.module.training}
    try:
        zerokit.generate(engine, [f"prompt of rank {rank}"])
    except ConfigError as error:
        after["unequal"] = str(error)
    if rank == 1:
        for parameter in engine.module.parameters():
            parameter.all_gather_coalesced = lambda *_, **_kw: 1 / 0
    try:
        with gathered(engine):
            pass
    except (ZeroDivisionError, RuntimeError) as error:  # rank 0 sees rank 1 end
        after["not_gathered"] = str(error)
    found["differs"] = [key for key in without if without[key] != found[key]]
    (folder / f"{rank}.json").write_text(json.dumps({**found, **after}))
