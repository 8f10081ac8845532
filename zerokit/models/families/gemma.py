"""Gemma 1 to 3. Gemma 3 from 4B on also reads images, with SigLIP's encoder (model type `gemma3`).

Source: transformers' `modeling_*.py` and `configuration_*.py` of gemma, gemma2, gemma3 and siglip.
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
    pre_norm_decoder,
)
from zerokit.models.keys import Keys, NotCountedError
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, layer_norm, linear, repeated, rms_norm, under


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


def _gemma3(keys: Keys) -> Parts:
    """The text decoder, SigLIP's image encoder, and the projector between them."""
    vision_keys = keys.section("vision_config", defaults=_SIGLIP)
    if vision_keys.text("model_type") not in ("", "siglip_vision_model"):
        raise NotCountedError(f"'vision_config.model_type' {vision_keys.text('model_type')}")
    text = _gemma3_text(keys.section("text_config", defaults=_GEMMA3_TEXT))
    vision = _siglip(vision_keys)
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


def _siglip(keys: Keys) -> Parts:
    """SigLIP's image encoder; with attention pooling unless `vision_use_head` is false."""
    sizes = _image_sizes(keys)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    layer = [
        *layer_norm("layer_norm1", hidden),
        *(
            tensor
            for name in ("k_proj", "v_proj", "q_proj", "out_proj")
            for tensor in linear(f"self_attn.{name}", hidden, hidden, bias=True, kind="attention")
        ),
        *layer_norm("layer_norm2", hidden),
        *linear("mlp.fc1", hidden, inner, bias=True, kind="mlp"),
        *linear("mlp.fc2", inner, hidden, bias=True, kind="mlp"),
    ]
    pooling = [
        Tensor("probe", (1, 1, hidden), "other"),
        Tensor("attention.in_proj_weight", (3 * hidden, hidden), "other"),
        Tensor("attention.in_proj_bias", (3 * hidden,), "bias"),
        *linear("attention.out_proj", hidden, hidden, bias=True, kind="other"),
        *layer_norm("layernorm", hidden),
        *linear("mlp.fc1", hidden, inner, bias=True, kind="other"),
        *linear("mlp.fc2", inner, hidden, bias=True, kind="other"),
    ]
    tensors = [
        *_patch_projection(keys, "embeddings.patch_embedding", hidden),
        Tensor("embeddings.position_embedding.weight", (_num_patches(keys), hidden), "embedding"),
        *repeated("encoder.layers", sizes.num_hidden_layers, layer),
        *layer_norm("post_layernorm", hidden),
        *(under("head", pooling) if keys.flag("vision_use_head") else []),
    ]
    return Parts(sizes, tensors)


def _image_sizes(keys: Keys) -> Sizes:
    heads = keys.size("num_attention_heads")
    head_dim = keys.optional_size("head_dim") or keys.divide("hidden_size", "num_attention_heads")
    return Sizes(
        vocab_size=None,
        hidden_size=keys.size("hidden_size"),
        intermediate_size=keys.size("intermediate_size"),
        num_hidden_layers=keys.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=None,
    )


def _num_patches(keys: Keys) -> int:
    image, patch = keys.area("image_size"), keys.area("patch_size")
    number = (image[0] // patch[0]) * (image[1] // patch[1])
    if number == 0:
        keys.fail("patch_size", "is larger than image_size", "Change patch_size or image_size")
    return number


def _patch_projection(keys: Keys, name: str, hidden: int) -> list[Tensor]:
    """A convolution that makes a hidden state of each patch."""
    shape = (hidden, keys.size("num_channels"), *keys.area("patch_size"))
    return [Tensor(f"{name}.weight", shape, "embedding"), Tensor(f"{name}.bias", (hidden,), "bias")]


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

_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "vision_use_head": True,
}

MODEL_TYPES = (
    ModelType("gemma", decoder_classes("Gemma", _gemma), defaults=_GEMMA_7B),
    # torch has no kernel for soft-capped scores.
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
