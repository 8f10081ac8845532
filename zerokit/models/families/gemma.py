"""Gemma 1 to 3 without images.

Source: transformers' `modeling_*.py` of gemma, gemma2 and gemma3.
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
from zerokit.models.tensors import rms_norm


def _gemma(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    mlp = gated_mlp(sizes.hidden_size, sizes.intermediate_size)
    return pre_norm_decoder(sizes, attention(sizes, bias=keys.flag("attention_bias")), mlp)


def _gemma2(keys: Keys, *, query_key_norms: bool = False) -> Parts:
    """Norms before and after both attention and MLP."""
    sizes = decoder_sizes(keys, heads_divide_hidden=True)
    hidden = sizes.hidden_size
    per_head = rms_norm("self_attn.q_norm", sizes.head_dim) + rms_norm("self_attn.k_norm", sizes.head_dim)
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *(per_head if query_key_norms else []),
        *gated_mlp(hidden, sizes.intermediate_size),
        *rms_norm("input_layernorm", hidden),
        *rms_norm("post_attention_layernorm", hidden),
        *rms_norm("pre_feedforward_layernorm", hidden),
        *rms_norm("post_feedforward_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


def _gemma3_text(keys: Keys) -> Parts:
    return _gemma2(keys, query_key_norms=True)


CLASSES = {
    "gemma": decoder_classes("Gemma", _gemma),
    "gemma2": decoder_classes("Gemma2", _gemma2),
    "gemma3_text": {
        **decoder_classes("Gemma3", _gemma3_text, model="TextModel", labels=()),
        **decoder_classes("Gemma3Text", _gemma3_text, causal_lm=None, labels=("sequence",)),
    },
}
