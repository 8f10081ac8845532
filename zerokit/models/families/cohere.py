"""Command R, R+ and R7B: one norm per layer, whose output attention and MLP share.

Source: transformers' `modeling_*.py` and `configuration_*.py` of cohere and cohere2.
"""

from __future__ import annotations

from zerokit.models.decoder import attention, decoder, decoder_classes, decoder_sizes, gated_mlp
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import rms_norm


def _cohere(keys: Keys) -> Parts:
    """With `use_qk_norm`, queries and keys have norms with weights of their own for every head."""
    sizes = decoder_sizes(keys)
    hidden, width = sizes.hidden_size, sizes.head_dim
    norms = [
        *rms_norm("self_attn.q_norm", sizes.num_attention_heads, width),
        *rms_norm("self_attn.k_norm", sizes.num_key_value_heads, width),
    ]
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *(norms if keys.flag("use_qk_norm") else []),
        *gated_mlp(hidden, sizes.intermediate_size),
        *rms_norm("input_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


def _cohere2(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *gated_mlp(hidden, sizes.intermediate_size),
        *rms_norm("input_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


_COMMAND_R = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}

MODEL_TYPES = (
    ModelType("cohere", decoder_classes("Cohere", _cohere, labels=()), defaults=_COMMAND_R),
    ModelType("cohere2", decoder_classes("Cohere2", _cohere2, labels=()), defaults=_COMMAND_R),
)
