"""A training loop of one's own: `train.py DS_CONFIG STEPS`."""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

deepspeed.init_distributed()
ds_config = json.loads(Path(sys.argv[1]).read_text())
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("model"), dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)

for _step in range(int(sys.argv[2])):
    for _ in range(4):  # gradient accumulation
        tokens = torch.randint(2, 300, (1, 128), device=engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
    engine.step()
engine.save_checkpoint("runs/mine")
