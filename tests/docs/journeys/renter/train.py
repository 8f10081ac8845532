"""Train Llama 3.1 8B on random tokens: `train.py DS_CONFIG`."""

import json
import sys
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

deepspeed.init_distributed()
ds_config = json.loads(Path(sys.argv[1]).read_text())
config = AutoConfig.from_pretrained("llama-3.1-8b")
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)

for _ in range(100):
    tokens = torch.randint(config.vocab_size, (1, 4096), device=engine.device)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
