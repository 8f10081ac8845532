"""Configs with one thing odd about each: the branches of every architecture, at sizes that build at once."""

from __future__ import annotations

from typing import Any

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 307,
    "max_position_embeddings": 40,
}
_EVEN_HEADS = {**_SMALL, "num_key_value_heads": 6}
_GPT = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 40, "vocab_size": 307}
_ENCODER = {
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 307,
    "max_position_embeddings": 40,
}
_T5 = {"d_model": 48, "d_kv": 7, "d_ff": 100, "num_layers": 2, "num_heads": 5, "vocab_size": 307}
_DEEPSEEK = {
    **_EVEN_HEADS,
    "num_hidden_layers": 4,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 12,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_group": 1,
    "topk_group": 1,
}
_QWEN3_MOE = {
    **_SMALL,
    "num_hidden_layers": 7,
    "moe_intermediate_size": 20,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
_QWEN_MOE = {**_QWEN3_MOE, "shared_expert_intermediate_size": 30}
_EXPERTS = {**_SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}

_DECODERS = (
    ("llama", _SMALL),
    ("mistral", _SMALL),
    ("ministral3", _SMALL),
    ("smollm3", _SMALL),
    ("granite", _SMALL),
    ("olmo2", _SMALL),
    ("olmo3", _SMALL),
    ("qwen2", _SMALL),
    ("qwen2_moe", _QWEN_MOE),
    ("qwen3", _SMALL),
    ("qwen3_moe", _QWEN3_MOE),
    ("gemma", _SMALL),
    ("gemma2", _SMALL),
    ("gemma3_text", _SMALL),
    ("phi3", _SMALL),
    ("mixtral", _EXPERTS),
    ("gpt_oss", _EXPERTS),
    ("gpt2", _GPT),
    ("deepseek_v2", _DEEPSEEK),
    ("deepseek_v3", _DEEPSEEK),
)

_ODD: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llama", "biases", {**_SMALL, "attention_bias": True, "mlp_bias": True}),
    ("llama", "head_dim given", {**_SMALL, "head_dim": 20}),
    ("llama", "one layer, one head", {**_EVEN_HEADS, "num_hidden_layers": 1, "num_attention_heads": 1,
                                      "num_key_value_heads": 1}),
    ("llama", "null heads and head_dim", {**_SMALL, "num_key_value_heads": None, "head_dim": None}),
    ("llama", "odd vocabulary", {**_SMALL, "vocab_size": 1}),
    ("mistral", "head_dim given", {**_SMALL, "hidden_size": 50, "head_dim": 16}),
    ("mistral", "sliding window", {**_SMALL, "sliding_window": None}),
    ("smollm3", "biases, no rope", {**_SMALL, "attention_bias": True, "mlp_bias": True,
                                    "no_rope_layers": [1, 0]}),
    ("granite", "biases", {**_SMALL, "attention_bias": True, "mlp_bias": True}),
    ("olmo2", "attention bias, head_dim", {**_SMALL, "attention_bias": True, "head_dim": 10}),
    ("qwen2", "head_dim given", {**_SMALL, "head_dim": 10}),
    ("qwen2", "sliding window", {**_SMALL, "use_sliding_window": True, "sliding_window": 8,
                                 "max_window_layers": 1}),
    ("qwen3", "attention bias", {**_SMALL, "attention_bias": True, "head_dim": 16}),
    ("qwen2_moe", "every other layer", {**_QWEN_MOE, "decoder_sparse_step": 2}),
    ("qwen2_moe", "dense layers named", {**_QWEN_MOE, "decoder_sparse_step": 2,
                                         "mlp_only_layers": [0, 1, 3, 99, -1]}),
    ("qwen2_moe", "no qkv bias", {**_QWEN_MOE, "qkv_bias": False}),
    ("qwen2_moe", "no experts", {**_QWEN_MOE, "num_experts": 0, "norm_topk_prob": True}),
    ("qwen3_moe", "every third layer", {**_QWEN3_MOE, "decoder_sparse_step": 3, "mlp_only_layers": [2]}),
    ("qwen3_moe", "head_dim, bias", {**_QWEN3_MOE, "head_dim": 12, "attention_bias": True}),
    ("qwen3_moe", "all layers dense", {**_QWEN3_MOE, "mlp_only_layers": list(range(7))}),
    ("qwen3_moe", "other spelling", {**{key: value for key, value in _QWEN3_MOE.items()
                                        if key != "num_experts"}, "num_local_experts": 6}),
    ("gemma", "attention bias", {**_SMALL, "attention_bias": True, "head_dim": 16}),
    ("gemma2", "attention bias", {**_SMALL, "attention_bias": True, "head_dim": 16}),
    ("gemma3_text", "head_dim given", {**_SMALL, "head_dim": 16}),
    ("phi3", "head_dim given", {**_SMALL, "head_dim": 16}),
    ("mixtral", "head_dim given", {**_EXPERTS, "head_dim": 12}),
    ("mixtral", "other spelling", {**_SMALL, "num_experts": 3}),
    ("mixtral", "one expert", {**_EXPERTS, "num_local_experts": 1, "num_experts_per_tok": 1}),
    ("gpt_oss", "no attention bias", {**_EXPERTS, "attention_bias": False, "head_dim": 10}),
    ("gpt2", "n_inner given", {**_GPT, "n_inner": 77}),
    ("gpt2", "other spellings", {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3,
                                 "max_position_embeddings": 21, "vocab_size": 99}),
    ("gpt2", "both spellings", {**_GPT, "hidden_size": 24, "num_hidden_layers": 1}),
    ("gpt2", "a key of other models", {**_GPT, "intermediate_size": 5}),
    ("deepseek_v2", "queries at once", {**_DEEPSEEK, "q_lora_rank": None}),
    ("deepseek_v2", "biases", {**_DEEPSEEK, "attention_bias": True, "mlp_bias": True}),
    ("deepseek_v3", "queries at once, bias", {**_DEEPSEEK, "q_lora_rank": None, "attention_bias": True}),
    ("deepseek_v3", "dense throughout", {**_DEEPSEEK, "first_k_dense_replace": 9}),
    ("deepseek_v3", "other spelling", {**_DEEPSEEK, "num_local_experts": 4}),
    ("bert", "one token type", {**_ENCODER, "type_vocab_size": 1}),
    ("bert", "no token types", {**_ENCODER, "type_vocab_size": 0}),
    ("bert", "untied", {**_ENCODER, "tie_word_embeddings": False}),
    ("bert", "labels named", {**_ENCODER, "id2label": {"0": "a", "1": "b", "2": "c"}}),
    ("roberta", "small", _ENCODER),
    ("roberta", "untied, labels counted", {**_ENCODER, "tie_word_embeddings": False, "num_labels": 5}),
    ("xlm-roberta", "small", _ENCODER),
    ("xlm-roberta", "untied", {**_ENCODER, "tie_word_embeddings": False}),
    ("t5", "small", _T5),
    ("t5", "v1.1", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("t5", "deeper decoder", {**_T5, "num_decoder_layers": 4, "relative_attention_num_buckets": 9}),
    ("t5", "other spellings", {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
                               "head_dim": 5, "d_ff": 40, "vocab_size": 99}),
    ("mt5", "small", _T5),
    ("mt5", "not gated", {**_T5, "feed_forward_proj": "relu"}),
    ("umt5", "small", {**_T5, "num_decoder_layers": 1}),
)  # fmt: skip


def odd_configurations() -> dict[str, dict[str, Any]]:
    """By what is odd about each: every decoder tied and untied, and the branches of every architecture."""
    found: dict[str, dict[str, Any]] = {}
    for model_type, config in _DECODERS:
        for tied in (True, False):
            name = f"{model_type}: {'tied' if tied else 'untied'}"
            found[name] = {**config, "model_type": model_type, "tie_word_embeddings": tied}
    for model_type, oddity, config in _ODD:
        found[f"{model_type}: {oddity}"] = {"model_type": model_type, **config}
    return found
