"""A small Llama that DeepSpeed's AutoTP cuts; every rank of a group is given the same batch."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, SEQUENCE, MICRO_BATCH = 3008, 161, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(7)
    model_config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        attn_implementation="eager",
        use_cache=False,
    )
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 700_001, "allgather_bucket_size": 900_002},
        "tensor_parallel": {"autotp_size": args.size},
        "gradient_clipping": 1.0,
    }
    engine, *_ = deepspeed.initialize(model=LlamaForCausalLM(model_config), config=config)
    generator = torch.Generator().manual_seed(engine.global_rank // args.size)
    for _ in range(args.steps):
        ids = torch.randint(0, VOCABULARY, (MICRO_BATCH, SEQUENCE), generator=generator).to(engine.device)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()


if __name__ == "__main__":
    main()
