"""StableLM and StarCoder2: decoders with grouped-query attention and LayerNorm.

Source: transformers' `modeling_*.py` and `configuration_*.py` of stablelm and starcoder2.
"""

from __future__ import annotations

from zerokit.models.decoder import attention, decoder, decoder_classes, decoder_sizes, gated_mlp
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import Tensor, layer_norm, linear, repeated


def _stablelm(keys: Keys) -> Parts:
    """With `qk_layernorm`, every head has its own norm; a parallel residual does without the second norm."""
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    keys.divide("hidden_size", "num_attention_heads")
    layer = attention(sizes, bias=keys.flag("use_qkv_bias"), output_bias=False)
    if keys.flag("qk_layernorm"):
        one = [Tensor("weight", (sizes.head_dim,), "norm")]
        layer += repeated("self_attn.q_layernorm.norms", sizes.num_attention_heads, one)
        layer += repeated("self_attn.k_layernorm.norms", sizes.num_key_value_heads, one)
    layer += [*gated_mlp(hidden, sizes.intermediate_size), *layer_norm("input_layernorm", hidden)]
    if not keys.flag("use_parallel_residual"):
        layer += layer_norm("post_attention_layernorm", hidden)
    return Parts(sizes, decoder(sizes, layer, final_norm=layer_norm("norm", hidden)))


def _starcoder2(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    hidden, inner, biased = sizes.hidden_size, sizes.intermediate_size, keys.flag("use_bias")
    layer = [
        *attention(sizes, bias=biased),
        *linear("mlp.c_fc", hidden, inner, bias=biased, kind="mlp"),
        *linear("mlp.c_proj", inner, hidden, bias=biased, kind="mlp"),
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=layer_norm("norm", hidden)))


MODEL_TYPES = (
    ModelType(
        "stablelm",
        decoder_classes("StableLm", _stablelm),
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
        },
    ),
    ModelType(
        "starcoder2",
        decoder_classes("Starcoder2", _starcoder2),
        defaults={
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
    ),
)
