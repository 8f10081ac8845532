"""Mixture-of-experts decoders without dense layers: Mixtral, OLMoE, Granite's, GPT-OSS.

Source: transformers' `modeling_*.py` and `configuration_*.py` of mixtral, olmoe, granitemoe,
granitemoeshared and gpt_oss.
"""

from __future__ import annotations

from zerokit.models.decoder import (
    attention,
    decoder_classes,
    decoder_sizes,
    experts,
    pre_norm_decoder,
    routed_experts,
)
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, linear, rms_norm


def _mixtral(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    routed = routed_experts(
        sizes, num_experts=keys.size("num_local_experts"), intermediate_size=sizes.intermediate_size
    )
    return _sparse_decoder(keys, sizes, attention(sizes), routed)


def _olmoe(keys: Keys) -> Parts:
    """Norms of queries and keys span all heads; `head_dim` does not change them."""
    sizes = decoder_sizes(keys)
    width = keys.divide("hidden_size", "num_attention_heads")
    query_key_norms = [
        *rms_norm("self_attn.q_norm", sizes.hidden_size),
        *rms_norm("self_attn.k_norm", width * sizes.num_key_value_heads),
    ]
    routed = routed_experts(
        sizes, num_experts=keys.size("num_experts"), intermediate_size=sizes.intermediate_size
    )
    biased = keys.flag("attention_bias")
    return _sparse_decoder(
        keys, sizes, attention(sizes, bias=biased), query_key_norms, routed, num_experts="num_experts"
    )


def _granite_moe(keys: Keys) -> Parts:
    """`granitemoeshared` may have a shared MLP."""
    sizes = decoder_sizes(keys)
    routed = routed_experts(
        sizes,
        num_experts=keys.size("num_local_experts"),
        intermediate_size=sizes.intermediate_size,
        name="block_sparse_moe",
        router="router",
    )
    hidden = sizes.hidden_size
    shared = keys.count("shared_intermediate_size") if keys.text("model_type") == "granitemoeshared" else 0
    shared_mlp = [
        *linear("shared_mlp.input_linear", hidden, 2 * shared, kind="mlp"),
        *linear("shared_mlp.output_linear", shared, hidden, kind="mlp"),
    ]
    biased = keys.flag("attention_bias")
    return _sparse_decoder(keys, sizes, attention(sizes, bias=biased), routed, shared_mlp if shared else [])


def _gpt_oss(keys: Keys) -> Parts:
    """Biases everywhere, experts stored inputs first, and one attention sink per head."""
    sizes = decoder_sizes(keys)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    number = keys.size("num_local_experts")
    layer = [
        Tensor("self_attn.sinks", (sizes.num_attention_heads,), "attention"),
        *attention(sizes, bias=keys.flag("attention_bias")),
        Tensor("mlp.router.weight", (number, hidden), "router"),
        Tensor("mlp.router.bias", (number,), "router"),
        Tensor("mlp.experts.gate_up_proj", (number, hidden, 2 * inner), "expert"),
        Tensor("mlp.experts.gate_up_proj_bias", (number, 2 * inner), "expert"),
        Tensor("mlp.experts.down_proj", (number, inner, hidden), "expert"),
        Tensor("mlp.experts.down_proj_bias", (number, hidden), "expert"),
    ]
    return _sparse_decoder(keys, sizes, layer)


def _sparse_decoder(
    keys: Keys, sizes: Sizes, *blocks: list[Tensor], num_experts: str = "num_local_experts"
) -> Parts:
    """A decoder with experts in all layers."""
    found = experts(keys, num_experts, num_layers=sizes.num_hidden_layers)
    return pre_norm_decoder(sizes, *blocks, experts=found)


_GRANITE_MOE = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}

MODEL_TYPES = (
    ModelType(
        "mixtral",
        decoder_classes("Mixtral", _mixtral),
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
        },
        aliases={"num_experts": "num_local_experts"},
    ),
    ModelType(
        "olmoe",
        decoder_classes("Olmoe", _olmoe, labels=()),
        defaults={
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 8,
            "num_experts": 64,
        },
        aliases={"num_local_experts": "num_experts"},
    ),
    ModelType("granitemoe", decoder_classes("GraniteMoe", _granite_moe, labels=()), defaults=_GRANITE_MOE),
    ModelType(
        "granitemoeshared",
        decoder_classes("GraniteMoeShared", _granite_moe, labels=()),
        defaults=_GRANITE_MOE,
    ),
    ModelType(
        "gpt_oss",
        decoder_classes("GptOss", _gpt_oss),
        defaults={
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
        },
        aliases={"num_experts": "num_local_experts"},
        has_sdpa=False,
    ),
)
