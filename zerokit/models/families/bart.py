"""BART.

Source: transformers' `modeling_*.py` and `configuration_*.py` of bart.
"""

from __future__ import annotations

from zerokit.models.decoder import output_matrix
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, layer_norm, linear, repeated, under

_OFFSET = 2
"""Rows that each position table has before the first position (`BartLearnedPositionalEmbedding`)."""

_DEFAULT_LABELS = 3


def _bart(keys: Keys) -> Parts:
    hidden = keys.size("d_model")
    sizes = Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.size("encoder_ffn_dim"),
        num_hidden_layers=keys.size("encoder_layers"),
        num_attention_heads=keys.size("encoder_attention_heads"),
        num_key_value_heads=keys.size("encoder_attention_heads"),
        head_dim=keys.divide("d_model", "encoder_attention_heads"),
        max_position_embeddings=keys.size("max_position_embeddings"),
    )
    keys.divide("d_model", "decoder_attention_heads")
    encoder = _stack(keys, hidden, "encoder", cross_attention=False)
    decoder = _stack(keys, hidden, "decoder", cross_attention=True)
    tokens = keys.size("vocab_size")
    if keys.flag("tie_word_embeddings"):
        shared = embedding("shared", tokens, hidden)
    else:
        # BartModel ties its three token tables by the same key that ties the output matrix.
        shared = [
            tensor
            for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
            for tensor in embedding(name, tokens, hidden)
        ]
    return Parts(sizes, shared + under("encoder", encoder) + under("decoder", decoder))


def _stack(keys: Keys, hidden: int, side: str, *, cross_attention: bool) -> list[Tensor]:
    inner = keys.size(f"{side}_ffn_dim")
    layer = [*_attention("self_attn", hidden), *layer_norm("self_attn_layer_norm", hidden)]
    if cross_attention:
        layer += _attention("encoder_attn", hidden) + layer_norm("encoder_attn_layer_norm", hidden)
    layer += linear("fc1", hidden, inner, bias=True, kind="mlp")
    layer += linear("fc2", inner, hidden, bias=True, kind="mlp")
    layer += layer_norm("final_layer_norm", hidden)
    return [
        *embedding("embed_positions", keys.size("max_position_embeddings") + _OFFSET, hidden),
        *repeated("layers", keys.size(f"{side}_layers"), layer),
        *layer_norm("layernorm_embedding", hidden),
    ]


def _attention(name: str, hidden: int) -> list[Tensor]:
    return [
        tensor
        for projection in ("k_proj", "v_proj", "q_proj", "out_proj")
        for tensor in linear(f"{name}.{projection}", hidden, hidden, bias=True, kind="attention")
    ]


def _language_model(keys: Keys) -> Parts:
    parts, tied = _bart(keys), keys.flag("tie_word_embeddings")
    head = [] if tied else output_matrix("lm_head", parts.sizes.hidden_size, parts.sizes.vocab_size)
    return Parts(parts.sizes, under("model", parts.tensors) + head, tied=tied)


def _sequence(keys: Keys) -> Parts:
    parts = _bart(keys)
    hidden = parts.sizes.hidden_size
    head = [
        *linear("classification_head.dense", hidden, hidden, bias=True, kind="other"),
        *linear(
            "classification_head.out_proj",
            hidden,
            keys.num_labels(_DEFAULT_LABELS),
            bias=True,
            kind="other",
        ),
    ]
    return Parts(parts.sizes, under("model", parts.tensors) + head)


MODEL_TYPES = (
    ModelType(
        "bart",
        {
            "BartForConditionalGeneration": _language_model,
            "BartModel": _bart,
            "BartForSequenceClassification": _sequence,
        },
        defaults={
            "vocab_size": 50265,
            "max_position_embeddings": 1024,
            "encoder_layers": 12,
            "encoder_ffn_dim": 4096,
            "encoder_attention_heads": 16,
            "decoder_layers": 12,
            "decoder_ffn_dim": 4096,
            "decoder_attention_heads": 16,
            "d_model": 1024,
            "tie_word_embeddings": True,
        },
        aliases={
            "num_attention_heads": "encoder_attention_heads",
            "hidden_size": "d_model",
            "num_hidden_layers": "encoder_layers",
        },
    ),
)
