"""Writes the memory that a forward pass with offloaded inputs reserves, in hidden states, by the number of layers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from zerokit.training.long_sequences import offload_checkpointed_inputs

SIZES = {"vocab_size": 256, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8}
TOKENS = 32768

reserved = {}
with torch.device("cuda"):
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    for layers in (6, 18):
        config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=layers, use_cache=False)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        model.gradient_checkpointing_enable()
        offload_checkpointed_inputs(model)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        model.model(input_ids=ids)
        reserved[layers] = (torch.cuda.max_memory_reserved() - before) / (2 * TOKENS * SIZES["hidden_size"])
        del model
Path(sys.argv[1]).write_text(json.dumps(reserved))
