"""Trains a few layers of a model family under ZeRO-3, with random weights: ``model_families.py FAMILY``.

Sizes are those of a published model but for the number of layers (and of DeepSeek-V3's experts), so that the
parameters can be counted by hand. Nothing is kept gathered and the bucket is small: what remains after a step
is the model's states.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
import torch._dynamo  # not to be imported first where zero.Init has replaced torch.Tensor.__new__
import transformers

TOKENS = 64
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1_000_000, "stage3_param_persistence_threshold": 0},
}
Made = tuple[Any, dict[str, torch.Tensor]]


def words(vocab_size: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, vocab_size, (1, TOKENS), device="cuda")
    return {"input_ids": ids, "labels": ids}


def mixtral() -> Made:
    config = transformers.MixtralConfig(num_hidden_layers=1)
    return transformers.MixtralForCausalLM(config), words(config.vocab_size)


def qwen3_moe() -> Made:
    config = transformers.Qwen3MoeConfig(num_hidden_layers=2, num_experts=128, head_dim=128, moe_intermediate_size=768)
    return transformers.Qwen3MoeForCausalLM(config), words(config.vocab_size)


def gpt_oss() -> Made:
    config = transformers.GptOssConfig(num_hidden_layers=2, num_local_experts=32)
    return transformers.GptOssForCausalLM(config), words(config.vocab_size)


def deepseek_v3() -> Made:
    config = transformers.DeepseekV3Config(num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=16)
    return transformers.DeepseekV3ForCausalLM(config), words(config.vocab_size)


def qwen2_vl() -> Made:
    config = transformers.Qwen2VLConfig(
        text_config={
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 2,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        vision_config={"depth": 2, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16},
    )
    patches, merged = 28 * 28, 14 * 14
    ids = torch.full((1, merged + TOKENS), 5, device="cuda")
    ids[0, 1] = config.vision_start_token_id
    ids[0, 2 : 2 + merged] = config.image_token_id
    batch = {
        "input_ids": ids,
        "labels": ids,
        "mm_token_type_ids": (ids == config.image_token_id).int(),
        "pixel_values": torch.randn(patches, 3 * 2 * 14 * 14, device="cuda", dtype=torch.bfloat16),
        "image_grid_thw": torch.tensor([[1, 28, 28]], device="cuda"),
    }
    return transformers.Qwen2VLForConditionalGeneration(config), batch


def llava() -> Made:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=2,
            num_attention_heads=16,
            image_size=336,
            patch_size=14,
        ),
        text_config=transformers.LlamaConfig(num_hidden_layers=2, vocab_size=32064),
        image_token_index=32000,
    )
    ids = torch.full((1, 576 + TOKENS), 5, device="cuda")
    ids[0, 1:577] = 32000
    pixels = torch.randn(1, 3, 336, 336, device="cuda", dtype=torch.bfloat16)
    model = transformers.LlavaForConditionalGeneration(config)
    return model, {"input_ids": ids, "labels": ids, "pixel_values": pixels}


def t5() -> Made:
    sizes = {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_heads": 32, "num_layers": 4}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), words(config.vocab_size)


def mamba() -> Made:
    config = transformers.MambaConfig(hidden_size=2560, num_hidden_layers=4)
    return transformers.MambaForCausalLM(config), words(config.vocab_size)


FAMILIES: list[Callable[[], Made]] = [mixtral, qwen3_moe, gpt_oss, deepseek_v3, qwen2_vl, llava, t5, mamba]


def main() -> None:
    (make,) = (family for family in FAMILIES if family.__name__ == sys.argv[1])
    deepspeed.init_distributed()
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model, batch = make()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    for _ in range(2):
        engine.backward(engine(**batch).loss)
        engine.step()


if __name__ == "__main__":
    main()
