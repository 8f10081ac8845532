"""Llama and decoders that differ from it in defaults, biases and norms: Mistral, SmolLM3, Granite, OLMo 2
and 3, Phi-3 and 4.

Source: transformers' `modeling_*.py` of llama, mistral, ministral3, smollm3, granite, olmo2, olmo3 and phi3.
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
from zerokit.models.parts import Parts
from zerokit.models.tensors import linear, rms_norm


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


CLASSES = {
    "llama": decoder_classes("Llama", _strict_llama),
    "mistral": decoder_classes("Mistral", _mistral),
    "ministral3": decoder_classes("Ministral3", _mistral),
    "smollm3": decoder_classes("SmolLM3", _llama),
    "granite": decoder_classes("Granite", _llama, labels=()),
    "olmo2": decoder_classes("Olmo2", _olmo2, labels=("sequence",)),
    "olmo3": decoder_classes("Olmo3", _olmo2, labels=("sequence",)),
    "phi3": decoder_classes("Phi3", _phi3),
}
