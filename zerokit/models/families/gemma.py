"""Gemma 1 to 3. Gemma 3 from 4B on also reads images, through SigLIP's encoder (model type `gemma3`).

Source: transformers' `modeling_*.py` and `configuration_*.py` of gemma, gemma2 and gemma3.
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.models.decoder import (
    attention,
    decoder,
    decoder_classes,
    decoder_sizes,
    gated_mlp,
    output_matrix,
)
from zerokit.models.families.vision import SIGLIP_DEFAULTS, siglip_encoder
from zerokit.models.keys import Keys, NotCountedError
from zerokit.models.parts import ModelType, Parts
from zerokit.models.tensors import Tensor, rms_norm, under


def _gemma(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *gated_mlp(hidden, sizes.intermediate_size),
        *rms_norm("input_layernorm", hidden),
        *rms_norm("post_attention_layernorm", hidden),
    ]
    return Parts(sizes, decoder(sizes, layer, final_norm=rms_norm("norm", hidden)))


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


def _gemma3(keys: Keys) -> Parts:
    """The text decoder, SigLIP's image encoder, and the projection of one to the other."""
    vision_keys = keys.section("vision_config", defaults=SIGLIP_DEFAULTS)
    if vision_keys.text("model_type") not in ("", "siglip_vision_model"):
        raise NotCountedError(f"'vision_config.model_type' {vision_keys.text('model_type')}")
    text = _gemma3_text(keys.section("text_config", defaults=_GEMMA3_TEXT))
    vision = siglip_encoder(vision_keys)
    width, hidden = vision.sizes.hidden_size, text.sizes.hidden_size
    projector = [
        Tensor("mm_input_projection_weight", (width, hidden), "other"),
        *rms_norm("mm_soft_emb_norm", width),
    ]
    tensors = [
        *under("vision_tower", vision.tensors),
        *under("multi_modal_projector", projector),
        *under("language_model", text.tensors),
    ]
    return replace(text, tensors=tensors, text_section=True)


def _gemma3_language_model(keys: Keys) -> Parts:
    parts = _gemma3(keys)
    tied = keys.flag("tie_word_embeddings")
    head = [] if tied else output_matrix("lm_head", parts.sizes.hidden_size, parts.sizes.vocab_size)
    return replace(parts, tensors=under("model", parts.tensors) + head, tied=tied)


_GEMMA_7B = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}

_GEMMA2_2B = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}

_GEMMA3_TEXT = {**_GEMMA2_2B, "vocab_size": 262208, "max_position_embeddings": 131072}

MODEL_TYPES = (
    ModelType("gemma", decoder_classes("Gemma", _gemma), defaults=_GEMMA_7B),
    # Soft-capped scores have no kernel in torch.
    ModelType("gemma2", decoder_classes("Gemma2", _gemma2), defaults=_GEMMA2_2B, has_sdpa=False),
    ModelType(
        "gemma3_text",
        {
            **decoder_classes("Gemma3", _gemma3_text, model="TextModel", labels=()),
            **decoder_classes("Gemma3Text", _gemma3_text, causal_lm=None, labels=("sequence",)),
        },
        defaults=_GEMMA3_TEXT,
    ),
    ModelType(
        "gemma3",
        {"Gemma3ForConditionalGeneration": _gemma3_language_model, "Gemma3Model": _gemma3},
        defaults={"tie_word_embeddings": True},
    ),
)
