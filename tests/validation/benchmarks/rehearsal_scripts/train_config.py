"""A plain DeepSpeed training script: a model of a published size, built from its config alone, on random
tokens.

Run it as any training script; the benchmark of the rehearsal's speed runs it on virtual GPUs.
"""

from __future__ import annotations

import argparse
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, PreTrainedConfig
from transformers.integrations import HfDeepSpeedConfig

LLAMA_3_1: dict[str, Any] = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def llama(hidden: int, intermediate: int, layers: int, heads: int) -> PreTrainedConfig:
    """Llama 3.1: what its published config.json says of one size."""
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        use_cache=False,
        **LLAMA_3_1,
    )


def deepseek_v3() -> PreTrainedConfig:
    """What the published config.json of deepseek-ai/DeepSeek-V3 says, without multi-token prediction."""
    return DeepseekV3Config(
        vocab_size=129280,
        hidden_size=7168,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        n_shared_experts=1,
        n_routed_experts=256,
        routed_scaling_factor=2.5,
        kv_lora_rank=512,
        q_lora_rank=1536,
        qk_rope_head_dim=64,
        v_head_dim=128,
        qk_nope_head_dim=128,
        n_group=8,
        topk_group=4,
        num_experts_per_tok=8,
        first_k_dense_replace=3,
        max_position_embeddings=163840,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
        num_mtp_layers=0,
        use_cache=False,
    )


MODELS = {
    "llama-3.1-8b": lambda: llama(4096, 14336, 32, 32),
    "llama-3.1-70b": lambda: llama(8192, 28672, 80, 64),
    "llama-3.1-405b": lambda: llama(16384, 53248, 126, 128),
    "deepseek-v3": deepseek_v3,
}


def deepspeed_config(stage: int, offload: bool) -> dict[str, Any]:
    """bf16 with AdamW; `offload` puts parameters and optimizer states into pinned host memory."""
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if offload:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    }


def main() -> None:
    """Train for `--steps` optimizer steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()

    deepspeed.init_distributed()
    settings = deepspeed_config(given.stage, given.offload)
    # At stage 3 transformers then builds the model below in parts, one for each rank.
    kept_alive = HfDeepSpeedConfig(settings)
    config = MODELS[given.model]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    del kept_alive
    for _ in range(given.steps):
        tokens = torch.randint(config.vocab_size, (1, given.sequence_length), device=engine.device)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
    print(f"peak {torch.cuda.max_memory_allocated()} bytes")


if __name__ == "__main__":
    main()
