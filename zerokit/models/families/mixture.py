"""Mixture-of-experts decoders: Mixtral, GPT-OSS and Qwen.

Source: transformers' `modeling_*.py` of mixtral, gpt_oss, qwen2_moe and qwen3_moe.
"""

from __future__ import annotations

from zerokit.models.decoder import (
    attention,
    decoder_classes,
    decoder_sizes,
    experts,
    gated_mlp,
    pre_norm_decoder,
    routed_experts,
    token_embedding,
)
from zerokit.models.keys import Keys
from zerokit.models.parts import Parts, Sizes
from zerokit.models.tensors import Tensor, linear, repeated, rms_norm


def _mixtral(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    routed = routed_experts(
        sizes, num_experts=keys.size("num_local_experts"), intermediate_size=sizes.intermediate_size
    )
    return _sparse_decoder(keys, sizes, attention(sizes), routed)


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


def _sparse_decoder(keys: Keys, sizes: Sizes, *blocks: list[Tensor]) -> Parts:
    """A decoder with experts in all layers."""
    found = experts(keys, "num_local_experts", num_layers=sizes.num_hidden_layers)
    return pre_norm_decoder(sizes, *blocks, experts=found)


def _qwen2_moe(keys: Keys) -> Parts:
    """Routed experts, and a shared expert with a gate."""
    sizes = decoder_sizes(keys)
    hidden = sizes.hidden_size
    sparse = [
        *routed_experts(
            sizes, num_experts=keys.count("num_experts"), intermediate_size=keys.size("moe_intermediate_size")
        ),
        *gated_mlp(hidden, keys.size("shared_expert_intermediate_size"), name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", hidden, 1, kind="router"),
    ]
    return _mixed_layers(keys, sizes, attention(sizes, bias=keys.flag("qkv_bias"), output_bias=False), sparse)


def _qwen3_moe(keys: Keys) -> Parts:
    sizes = decoder_sizes(keys)
    sparse = routed_experts(
        sizes,
        num_experts=keys.count("num_experts"),
        intermediate_size=keys.size("moe_intermediate_size"),
        router_first=False,
    )
    attention_of_layer = [
        *attention(sizes, bias=keys.flag("attention_bias")),
        *rms_norm("self_attn.q_norm", sizes.head_dim),
        *rms_norm("self_attn.k_norm", sizes.head_dim),
    ]
    return _mixed_layers(keys, sizes, attention_of_layer, sparse)


def _mixed_layers(keys: Keys, sizes: Sizes, attention_of_layer: list[Tensor], sparse: list[Tensor]) -> Parts:
    """Layers with equal attention and norms; some have experts, the others a dense MLP."""
    sparse_layers = _sparse_layers(keys, sizes.num_hidden_layers)
    dense_layers = sizes.num_hidden_layers - sparse_layers
    norms = [
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    ]
    tensors = [
        *token_embedding(sizes),
        *repeated("layers", sizes.num_hidden_layers, attention_of_layer),
        *repeated("layers", sparse_layers, sparse),
        *repeated("layers", dense_layers, gated_mlp(sizes.hidden_size, sizes.intermediate_size)),
        *repeated("layers", sizes.num_hidden_layers, norms),
        *rms_norm("norm", sizes.hidden_size),
    ]
    found = experts(keys, "num_experts", num_layers=sparse_layers) if sparse_layers else None
    return Parts(sizes, tensors, experts=found)


def _sparse_layers(keys: Keys, num_hidden_layers: int) -> int:
    """The number of layers step, 2 step, 3 step, ..., without those in `mlp_only_layers` (from 0)."""
    if keys.count("num_experts") == 0:
        return 0
    step = keys.size("decoder_sparse_step")
    dense = {
        index
        for index in keys.layers("mlp_only_layers")
        if 0 <= index < num_hidden_layers and (index + 1) % step == 0
    }
    return num_hidden_layers // step - len(dense)


CLASSES = {
    "mixtral": decoder_classes("Mixtral", _mixtral),
    "gpt_oss": decoder_classes("GptOss", _gpt_oss),
    "qwen2_moe": decoder_classes("Qwen2Moe", _qwen2_moe),
    "qwen3_moe": decoder_classes("Qwen3Moe", _qwen3_moe),
}
