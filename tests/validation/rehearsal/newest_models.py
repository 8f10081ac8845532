"""Models of the newest published runs, as their config.json."""

from __future__ import annotations

from typing import Any

from tests.validation.hardware.published_throughput import Row
from tests.validation.rehearsal.published_models import gpt2, llama

_QWEN3_32B = {"num_key_value_heads": 8, "head_dim": 128}


def opt(layers: int, width: int, heads: int, vocabulary: int = 50272, **more: Any) -> dict[str, Any]:
    """OPT's code: queries, keys and values are three matrices, and the output has the embedding's weights."""
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "ffn_dim": 4 * width,
        "word_embed_proj_dim": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        **more,
    }


def pangu(layers: int, width: int, heads: int) -> dict[str, Any]:
    """Pangu's sizes by OPT's code: its dropout, activation and vocabulary, without its one query layer."""
    return opt(layers, width, heads, 40000, attention_dropout=0.1, activation_function="gelu")


def bert(layers: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {"model_type": "bert", **sizes, "intermediate_size": 4 * width, "vocab_size": vocabulary, "num_labels": 3}


_DISTILBERT = {
    "model_type": "distilbert",
    "n_layers": 6,
    "dim": 768,
    "n_heads": 12,
    "hidden_dim": 3072,
    "vocab_size": 30522,
    "num_labels": 3,
}
_DEBERTA_V2_XXLARGE = {
    "model_type": "deberta-v2",
    "num_hidden_layers": 48,
    "hidden_size": 1536,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "vocab_size": 128100,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "max_relative_positions": -1,
    "position_biased_input": False,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
    "type_vocab_size": 0,
    "num_labels": 3,
}
_GPT_J_6B = {
    "model_type": "gptj",
    "n_layer": 28,
    "n_embd": 4096,
    "n_head": 16,
    "rotary_dim": 64,
    "vocab_size": 50257,
    "n_positions": 2048,
    "tie_word_embeddings": False,
}
_CHATGLM_6B = gpt2(2048, 28, 4096, 32, vocabulary=150528)
_MODELS = {
    "Pangu-350M": pangu(24, 1024, 16),
    "Pangu-2.6B": pangu(32, 2560, 32),
    "ChatGLM-6B": _CHATGLM_6B,
    "GPT-J-6B": _GPT_J_6B,
    "Llama-2-7B": llama("llama", 32, 4096, 32, 11008, 32000),
    "Llama-2-13B": llama("llama", 40, 5120, 40, 13824, 32000),
    "LLaMA-13B": llama("llama", 40, 5120, 40, 13824, 32000),
    "gpt2_18B": gpt2(1024, 90, 4096, 16, dropped=0.1) | {"activation_function": "gelu_new"},
    "gpt2_12B": gpt2(1024, 60, 4096, 16, dropped=0.1) | {"activation_function": "gelu_new"},
    "GPT2-xl": gpt2(1024, 48, 1600, 25, dropped=0.1) | {"activation_function": "gelu_new"},
    "OPT-1.3B": opt(24, 2048, 32),
    "OPT-350M reward": opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False, dropout=0.0),
    "OPT-13B": opt(40, 5120, 40),
    "OPT-30B": opt(48, 7168, 56),
    "GPT-7B-ish": gpt2(2048, 48, 4096, 32) | {"tie_word_embeddings": False},
    "Qwen3-32B": llama("qwen3", 64, 5120, 64, 25600, 151936, **_QWEN3_32B),
    "GPT 175B": gpt2(512, 96, 12288, 96, dropped=0.1),
    "GPT 1T": gpt2(1024, 128, 25600, 160, dropped=0.1),
    "GPT-2 10B": gpt2(1024, 50, 4096, 32, dropped=0.1),
    "DistilBERT": _DISTILBERT,
    "BERT-base": bert(12, 768, 12, 28996),
    "BERT-large": bert(24, 1024, 16, 30522),
    "DeBERTa-v2-xxlarge": _DEBERTA_V2_XXLARGE,
    "Open-Llama-7B": llama("llama", 32, 4096, 32, 11008, 68762),
    "Open-Llama-13B": llama("llama", 40, 5120, 40, 13824, 68762),
    "Open-Llama-33B": llama("llama", 60, 6656, 52, 17920, 68762),
    "Open-Llama-65B": llama("llama", 80, 8192, 64, 22016, 68762),
}


def newest_model(row: Row) -> dict[str, Any]:
    """The row's config.json.

    Raises:
        KeyError: its sizes are not known here.
    """
    return dict(_MODELS[row["model"]])


def width_of(model: dict[str, Any]) -> int:
    return int(model.get("hidden_size") or model.get("n_embd") or model["dim"])
