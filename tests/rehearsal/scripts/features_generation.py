"""Generation with transformers under ZeRO-3: ranks go on until the last is done, and the cache grows."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from small_llama import small_llama
from transformers import LlamaForCausalLM

BATCH = 4
PROMPT = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--no-cache", action="store_true")
    args = parser.parse_args()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = LlamaForCausalLM(small_llama())
    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.eval()
    prompt = torch.randint(3, 32000, (BATCH, PROMPT), device=engine.device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        answer = engine.module.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=args.new_tokens,
            do_sample=args.sample,
            use_cache=not args.no_cache,
            synced_gpus=True,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
    cache = answer.past_key_values
    held = 0
    if cache is not None:
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    print("tokens", tuple(answer.sequences.shape), "cache", held, "before", before)
    print("after", torch.cuda.memory_allocated(), "peak", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
