"""Mixture-of-experts decoders without dense layers: Mixtral, GPT-OSS.

Source: transformers' `modeling_*.py` of mixtral and gpt_oss.
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
from zerokit.models.parts import Parts, Sizes
from zerokit.models.tensors import Tensor


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


CLASSES = {
    "mixtral": decoder_classes("Mixtral", _mixtral),
    "gpt_oss": decoder_classes("GptOss", _gpt_oss),
}
