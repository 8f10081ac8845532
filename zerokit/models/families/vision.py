"""ViT, and SigLIP's image encoder.

Source: transformers' `modeling_*.py` and `configuration_*.py` of vit and siglip.
"""

from __future__ import annotations

from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, layer_norm, linear, repeated, under


def siglip_encoder(keys: Keys) -> Parts:
    """SigLIP's encoder of images, with its attention pooling unless `vision_use_head` is false."""
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


def _vit_backbone(keys: Keys) -> Parts:
    sizes = _image_sizes(keys)
    hidden, inner, heads = sizes.hidden_size, sizes.intermediate_size, sizes.query_size
    biased = keys.flag("qkv_bias")
    layer = [
        *(
            tensor
            for name in ("q_proj", "k_proj", "v_proj")
            for tensor in linear(f"attention.{name}", hidden, heads, bias=biased, kind="attention")
        ),
        *linear("attention.o_proj", heads, hidden, bias=True, kind="attention"),
        *layer_norm("layernorm_before", hidden),
        *layer_norm("layernorm_after", hidden),
        *linear("mlp.fc1", hidden, inner, bias=True, kind="mlp"),
        *linear("mlp.fc2", inner, hidden, bias=True, kind="mlp"),
    ]
    tensors = [
        Tensor("embeddings.cls_token", (1, 1, hidden), "embedding"),
        Tensor("embeddings.position_embeddings", (1, _num_patches(keys) + 1, hidden), "embedding"),
        *_patch_projection(keys, "embeddings.patch_embeddings.projection", hidden),
        *repeated("layers", sizes.num_hidden_layers, layer),
        *layer_norm("layernorm", hidden),
    ]
    return Parts(sizes, tensors)


def _vit_classifier(keys: Keys) -> Parts:
    parts = _vit_backbone(keys)
    labels = keys.num_labels()
    classifier = (
        linear("classifier", parts.sizes.hidden_size, labels, bias=True, kind="other") if labels else []
    )
    return Parts(parts.sizes, under("vit", parts.tensors) + classifier)


def _vit_with_pooler(keys: Keys) -> Parts:
    parts = _vit_backbone(keys)
    hidden = parts.sizes.hidden_size
    outputs = keys.optional_size("pooler_output_size") or hidden
    pooler = linear("pooler.dense", hidden, outputs, bias=True, kind="other")
    return Parts(parts.sizes, parts.tensors + pooler)


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
    """A convolution that makes one hidden state of each patch."""
    shape = (hidden, keys.size("num_channels"), *keys.area("patch_size"))
    return [Tensor(f"{name}.weight", shape, "embedding"), Tensor(f"{name}.bias", (hidden,), "bias")]


_IMAGE_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
}

SIGLIP_DEFAULTS = {**_IMAGE_DEFAULTS, "vision_use_head": True}
"""What transformers takes for absent keys of SigLIP's image encoder (`SiglipVisionConfig`)."""

MODEL_TYPES = (
    ModelType(
        "vit",
        {"ViTForImageClassification": _vit_classifier, "ViTModel": _vit_with_pooler},
        defaults={**_IMAGE_DEFAULTS, "qkv_bias": True},
    ),
)
