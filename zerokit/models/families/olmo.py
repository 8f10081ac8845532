"""OLMo 2 and 3: the norms stand after attention and MLP, and queries and keys are normalised, too.

Source: transformers' `modeling_*.py` and `configuration_*.py` of olmo2 and olmo3.
"""

from __future__ import annotations

from zerokit.models.decoder import attention, decoder, decoder_classes, decoder_sizes, gated_mlp
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import rms_norm


def _olmo2(keys: Keys) -> Parts:
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


_OLMO_7B = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}

MODEL_TYPES = (
    ModelType("olmo2", decoder_classes("Olmo2", _olmo2, labels=("sequence",)), defaults=_OLMO_7B),
    ModelType("olmo3", decoder_classes("Olmo3", _olmo2, labels=("sequence",)), defaults=_OLMO_7B),
)
