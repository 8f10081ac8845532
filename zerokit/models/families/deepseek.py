"""DeepSeek V2 and V3 (and R1): multi-head latent attention, and experts after the first dense layers.

Source: transformers' `modeling_*.py` of deepseek_v2 and deepseek_v3. Layers for
multi-token prediction, which V3's checkpoint has, are not part of transformers' model.
"""

from __future__ import annotations

from zerokit.models.decoder import decoder_classes, experts, gated_mlp, routed_experts, token_embedding
from zerokit.models.keys import Keys
from zerokit.models.parts import Parts, Sizes
from zerokit.models.tensors import Tensor, linear, repeated, rms_norm, under


def _deepseek(keys: Keys, *, mlp_bias: bool) -> Parts:
    sizes = _sizes(keys)
    hidden, layers = sizes.hidden_size, sizes.num_hidden_layers
    dense_layers = min(keys.count("first_k_dense_replace"), layers)
    sparse_layers = layers - dense_layers
    expert_size = keys.size("moe_intermediate_size")
    sparse = [
        *routed_experts(
            sizes,
            num_experts=keys.size("n_routed_experts"),
            intermediate_size=expert_size,
            router_first=False,
        ),
        *gated_mlp(
            hidden, keys.size("n_shared_experts") * expert_size, bias=mlp_bias, name="mlp.shared_experts"
        ),
    ]
    tensors = [
        *token_embedding(sizes),
        *repeated("layers", layers, under("self_attn", _latent_attention(keys, sizes))),
        *repeated("layers", dense_layers, gated_mlp(hidden, sizes.intermediate_size, bias=mlp_bias)),
        *repeated("layers", sparse_layers, sparse),
        *repeated("layers", layers, rms_norm("input_layernorm", hidden)),
        *repeated("layers", layers, rms_norm("post_attention_layernorm", hidden)),
        *rms_norm("norm", hidden),
    ]
    found = experts(keys, "n_routed_experts", num_layers=sparse_layers) if sparse_layers else None
    return Parts(sizes, tensors, experts=found)


def _latent_attention(keys: Keys, sizes: Sizes) -> list[Tensor]:
    """Projections down to a latent vector, its norm, and projections up, for queries and for keys with
    values.

    Without `q_lora_rank` queries have one projection. All heads share the rotary part of the keys.
    """
    hidden, heads = sizes.hidden_size, sizes.num_attention_heads
    biased = keys.flag("attention_bias")
    content, rotary = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    value = keys.size("v_head_dim")
    query_rank, key_value_rank = keys.optional_size("q_lora_rank"), keys.size("kv_lora_rank")
    queries = heads * (content + rotary)
    if query_rank is None:
        query = linear("q_proj", hidden, queries, kind="attention")
    else:
        query = [
            *linear("q_a_proj", hidden, query_rank, bias=biased, kind="attention"),
            *rms_norm("q_a_layernorm", query_rank),
            *linear("q_b_proj", query_rank, queries, kind="attention"),
        ]
    return [
        *query,
        *linear("kv_a_proj_with_mqa", hidden, key_value_rank + rotary, bias=biased, kind="attention"),
        *rms_norm("kv_a_layernorm", key_value_rank),
        *linear("kv_b_proj", key_value_rank, heads * (content + value), kind="attention"),
        *linear("o_proj", heads * value, hidden, bias=biased, kind="attention"),
    ]


def _sizes(keys: Keys) -> Sizes:
    """`head_dim` is the size of a head's query and key: the rotary and the other part."""
    heads = keys.size("num_attention_heads")
    return Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("hidden_size"),
        intermediate_size=keys.size("intermediate_size"),
        num_hidden_layers=keys.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=keys.optional_size("num_key_value_heads") or heads,
        head_dim=keys.size("qk_nope_head_dim") + keys.size("qk_rope_head_dim"),
        max_position_embeddings=keys.optional_size("max_position_embeddings"),
    )


def _deepseek_v2(keys: Keys) -> Parts:
    keys.divide("hidden_size", "num_attention_heads")
    return _deepseek(keys, mlp_bias=keys.flag("mlp_bias"))


def _deepseek_v3(keys: Keys) -> Parts:
    return _deepseek(keys, mlp_bias=False)


CLASSES = {
    "deepseek_v2": decoder_classes("DeepseekV2", _deepseek_v2, labels=("sequence",)),
    "deepseek_v3": decoder_classes("DeepseekV3", _deepseek_v3),
}
