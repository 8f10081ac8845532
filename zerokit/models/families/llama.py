"""Llama and decoders that differ from it in defaults, biases and norms: Mistral, SmolLM3, Granite, OLMo.

Source: transformers' `modeling_*.py` and `configuration_*.py` of llama, mistral, ministral3, smollm3,
granite, olmo, olmo2 and olmo3.
"""

from __future__ import annotations

from zerokit.models.decoder import (
    attention,
    decoder,
    decoder_classes,
    decoder_sizes,
    gated_mlp,
    pre_norm_decoder,
)
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import rms_norm


def _llama(keys: Keys, *, heads_divide_hidden: bool = False) -> Parts:
    sizes = decoder_sizes(keys, heads_divide_hidden=heads_divide_hidden)
    return pre_norm_decoder(
        sizes,
        attention(sizes, bias=keys.flag("attention_bias")),
        gated_mlp(sizes.hidden_size, sizes.intermediate_size, bias=keys.flag("mlp_bias")),
    )


def _strict_llama(keys: Keys) -> Parts:
    """Heads must divide the hidden size, even with a head size given."""
    return _llama(keys, heads_divide_hidden=True)


def _mistral(keys: Keys) -> Parts:
    """Llama without biases."""
    sizes = decoder_sizes(keys)
    return pre_norm_decoder(sizes, attention(sizes), gated_mlp(sizes.hidden_size, sizes.intermediate_size))


def _olmo(keys: Keys) -> Parts:
    """OLMo's first generation has norms without weights."""
    sizes = decoder_sizes(keys)
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=[]))


def _olmo2(keys: Keys) -> Parts:
    """The norms follow attention and MLP, and queries and keys have norms too."""
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *rms_norm("self_attn.q_norm", sizes.query_size),
        *rms_norm("self_attn.k_norm", sizes.key_value_size),
        *gated_mlp(hidden, sizes.intermediate_size),
        *rms_norm("post_attention_layernorm", hidden),
        *rms_norm("post_feedforward_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


_LLAMA_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}

_OLMO_7B = {**_LLAMA_7B, "vocab_size": 50304}

_MISTRAL_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}

MODEL_TYPES = (
    ModelType("llama", decoder_classes("Llama", _strict_llama), defaults=_LLAMA_7B),
    ModelType("mistral", decoder_classes("Mistral", _mistral), defaults=_MISTRAL_7B),
    ModelType(
        "ministral3",
        decoder_classes("Ministral3", _mistral),
        defaults={
            **_MISTRAL_7B,
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "max_position_embeddings": 262144,
        },
    ),
    ModelType(
        "smollm3",
        decoder_classes("SmolLM3", _llama),
        defaults={
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    ),
    ModelType("granite", decoder_classes("Granite", _llama, labels=()), defaults=_LLAMA_7B),
    ModelType("olmo", decoder_classes("Olmo", _olmo, labels=("sequence",)), defaults=_OLMO_7B),
    ModelType("olmo2", decoder_classes("Olmo2", _olmo2, labels=("sequence",)), defaults=_OLMO_7B),
    ModelType("olmo3", decoder_classes("Olmo3", _olmo2, labels=("sequence",)), defaults=_OLMO_7B),
)
