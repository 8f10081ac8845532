"""Models whose published throughput is rehearsed, as their config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.validation.hardware.published_throughput import Row


def _mpt(length: int, layers: int, width: int, heads: int) -> dict[str, Any]:
    return gpt2(length, layers, width, heads, vocabulary=50368)


def gpt2(
    length: int, layers: int, width: int, heads: int, vocabulary: int = 50257, dropped: float = 0.0
) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropped)
    return {"model_type": "gpt2", **sizes, **dropout, "n_positions": length, "activation_function": "gelu"}


def llama(kind: str, layers: int, width: int, heads: int, inner: int, vocabulary: int, **more: Any) -> Any:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {
        "model_type": kind,
        **sizes,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2**17,
        "tie_word_embeddings": False,
        **more,
    }


_MPT = {  # llm-foundry's yamls: layers, d_model, n_heads
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
_GPT2 = {"GPT2": (12, 768, 12), "GPT2-medium": (24, 1024, 16), "GPT2-large": (36, 1280, 20)} | {
    "GPT2-xl": (48, 1600, 25)
}
_ITS_OWN = {"activation_function": "gelu_new"}
"""GPT-2's, of nine kernels, where transformers made the model."""
_MODELS: Mapping[str, dict[str, Any]] = {
    "Qwen-1.8B": llama("qwen2", 24, 2048, 16, 5504, 151936),
    "Qwen-7B": llama("qwen2", 32, 4096, 32, 11008, 151936),
    "Qwen-14B": llama("qwen2", 40, 5120, 40, 13696, 152064),
    "Qwen-72B": llama("qwen2", 80, 8192, 64, 24576, 152064),
    "Qwen2.5-3B": llama("qwen2", 36, 2048, 16, 11008, 151936, num_key_value_heads=2, tie_word_embeddings=True),
    "Qwen2.5-14B": llama("qwen2", 48, 5120, 40, 13824, 152064, num_key_value_heads=8),
    "Qwen1.5-MoE-A2.7B": llama(
        *("qwen2_moe", 24, 2048, 16, 5632, 151936),
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts=60,
        num_experts_per_tok=4,
    ),
    "Qwen3-30B-A3B": llama(
        *("qwen3_moe", 48, 2048, 32, 6144, 151936),
        num_key_value_heads=4,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
    "LLaMA-7B": llama("llama", 32, 4096, 32, 11008, 32000),
    "Llama-2-7B": llama("llama", 32, 4096, 32, 11008, 32000),
    "Llama-2-34B": llama("llama", 48, 8192, 64, 22016, 32000, num_key_value_heads=8),
    "Llama-2-70B": llama("llama", 80, 8192, 64, 28672, 32000, num_key_value_heads=8),
    "Llama-3-8B": llama("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8),
    "Llama-3-70B": llama("llama", 80, 8192, 64, 28672, 128256, num_key_value_heads=8),
    "Llama-3.1-8B": llama("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8),
    "Yi-34B": llama("llama", 60, 7168, 56, 20480, 64000, num_key_value_heads=8),
    "ChatGLM3-6B": llama("llama", 28, 4096, 32, 13696, 65024, num_key_value_heads=2, attention_bias=True),
    "Baichuan2-13B": llama("llama", 40, 5120, 40, 13696, 125696),
    "InternLM-7B": llama("llama", 32, 4096, 32, 11008, 103168, attention_bias=True),
}


def model_of(row: Row) -> dict[str, Any] | None:
    """Its config.json; None if its sizes are not known here."""
    name, length = row["model"], row["seq_len"]
    if name.startswith("MPT-"):
        return _mpt(length, *_MPT[name.removeprefix("MPT-")])
    if name in _GPT2:
        return gpt2(length, *_GPT2[name], dropped=0.1) | _ITS_OWN
    if name == "GPT-2 52B":
        model = gpt2(length, 64, 8192, 32)  # MSIZE=52 of bigscience's hf_ds_gpt2_perf_n16.slurm
        return model | _ITS_OWN if "HF+DS" in row["source"] else model
    if name == "6.86B":
        return gpt2(length, 32, 4096, 32) | {"tie_word_embeddings": False}
    return _MODELS.get(name)
