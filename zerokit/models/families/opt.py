"""OPT: the token embedding may be narrower than the hidden state, as in OPT-350M.

Source: transformers' `modeling_*.py` and `configuration_*.py` of opt.
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.models.decoder import output_matrix
from zerokit.models.families.bert import encoder_sizes
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import Tensor, embedding, layer_norm, linear, repeated, under

_OFFSET = 2
"""Rows that the position table has before the first position (`OPTLearnedPositionalEmbedding`)."""


def _opt(keys: Keys) -> Parts:
    sizes = encoder_sizes(keys, "ffn_dim")
    hidden, inner, narrow = sizes.hidden_size, sizes.intermediate_size, _embedding_size(keys)
    assert sizes.vocab_size is not None
    assert sizes.max_position_embeddings is not None
    biased = keys.flag("enable_bias")
    layer = [
        *(
            tensor
            for name in ("k_proj", "v_proj", "q_proj", "out_proj")
            for tensor in linear(f"self_attn.{name}", hidden, hidden, bias=biased, kind="attention")
        ),
        *_norm(keys, "self_attn_layer_norm", hidden),
        *linear("fc1", hidden, inner, bias=biased, kind="mlp"),
        *linear("fc2", inner, hidden, bias=biased, kind="mlp"),
        *_norm(keys, "final_layer_norm", hidden),
    ]
    tensors = embedding("embed_tokens", sizes.vocab_size, narrow)
    tensors += embedding("embed_positions", sizes.max_position_embeddings + _OFFSET, hidden)
    if narrow != hidden:
        tensors += linear("project_out", hidden, narrow, kind="embedding")
        tensors += linear("project_in", narrow, hidden, kind="embedding")
    if keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm"):
        tensors += _norm(keys, "final_layer_norm", hidden)
    tensors += repeated("layers", sizes.num_hidden_layers, layer)
    return Parts(sizes, under("decoder", tensors))


def _language_model(keys: Keys) -> Parts:
    parts, tied = _opt(keys), keys.flag("tie_word_embeddings")
    head = [] if tied else output_matrix("lm_head", _embedding_size(keys), parts.sizes.vocab_size)
    return replace(parts, tensors=under("model", parts.tensors) + head, tied=tied)


def _classifier(keys: Keys) -> Parts:
    parts = _opt(keys)
    score = linear("score", _embedding_size(keys), keys.num_labels(), kind="other")
    return replace(parts, tensors=under("model", parts.tensors) + score)


def _embedding_size(keys: Keys) -> int:
    return keys.optional_size("word_embed_proj_dim") or keys.size("hidden_size")


def _norm(keys: Keys, name: str, size: int) -> list[Tensor]:
    return layer_norm(name, size) if keys.flag("layer_norm_elementwise_affine") else []


MODEL_TYPES = (
    ModelType(
        "opt",
        {"OPTForCausalLM": _language_model, "OPTModel": _opt, "OPTForSequenceClassification": _classifier},
        defaults={
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "do_layer_norm_before": True,
            "num_attention_heads": 12,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
        },
    ),
)
