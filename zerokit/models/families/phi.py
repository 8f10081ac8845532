"""Phi 1 and 2, Phi-3 and 4, and Phi's mixture of experts.

Source: transformers' `modeling_*.py` and `configuration_*.py` of phi, phi3 and phimoe.
"""

from __future__ import annotations

from zerokit.models.decoder import (
    attention,
    decoder,
    decoder_classes,
    decoder_sizes,
    experts,
    pre_norm_decoder,
    routed_experts,
)
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import layer_norm, linear


def _phi(keys: Keys) -> Parts:
    """One norm per layer for attention and MLP; biases everywhere, also in the head."""
    sizes = decoder_sizes(keys)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    layer = [
        *attention(sizes, bias=True, output="dense"),
        *linear("mlp.fc1", hidden, inner, bias=True, kind="mlp"),
        *linear("mlp.fc2", inner, hidden, bias=True, kind="mlp"),
        *layer_norm("input_layernorm", hidden),
    ]
    if keys.flag("qk_layernorm"):
        width = keys.divide("hidden_size", "num_attention_heads")
        layer += layer_norm("self_attn.q_layernorm", width) + layer_norm("self_attn.k_layernorm", width)
    return Parts(sizes, decoder(sizes, layer, final_norm=layer_norm("final_layernorm", hidden)))


def _phi3(keys: Keys) -> Parts:
    """Fused projections: queries, keys and values; gate and up."""
    sizes = decoder_sizes(keys)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    fused = sizes.query_size + 2 * sizes.key_value_size
    layer = [
        *linear("self_attn.o_proj", sizes.query_size, hidden, kind="attention"),
        *linear("self_attn.qkv_proj", hidden, fused, kind="attention"),
        *linear("mlp.gate_up_proj", hidden, 2 * inner, kind="mlp"),
        *linear("mlp.down_proj", inner, hidden, kind="mlp"),
    ]
    return pre_norm_decoder(sizes, layer)


def _phimoe(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *routed_experts(
            sizes,
            num_experts=keys.size("num_local_experts"),
            intermediate_size=sizes.intermediate_size,
            router="router",
        ),
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
    ]
    return Parts(
        sizes,
        decoder(sizes, layer, final_norm=layer_norm("norm", hidden)),
        experts=experts(keys, "num_local_experts", num_layers=sizes.num_hidden_layers),
    )


MODEL_TYPES = (
    ModelType(
        "phi",
        decoder_classes("Phi", _phi, head_bias=lambda keys: True),
        defaults={
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
    ModelType(
        "phi3",
        decoder_classes("Phi3", _phi3),
        defaults={
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
    ),
    ModelType(
        "phimoe",
        decoder_classes(
            "Phimoe", _phimoe, head_bias=lambda keys: keys.flag("lm_head_bias"), labels=("sequence",)
        ),
        defaults={
            "vocab_size": 32064,
            "hidden_size": 4096,
            "intermediate_size": 6400,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 2,
            "num_local_experts": 16,
        },
    ),
)
