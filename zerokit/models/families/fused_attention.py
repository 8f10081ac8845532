"""Decoders with one projection for queries, keys and values: GPT-NeoX (Pythia), BLOOM, Falcon, MPT.

Source: transformers' `modeling_*.py` and `configuration_*.py` of gpt_neox, bloom, falcon and mpt.
"""

from __future__ import annotations

from zerokit.models.decoder import decoder, decoder_classes, token_embedding
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, layer_norm, linear, rms_norm


def _gpt_neox(keys: Keys) -> Parts:
    sizes = _sizes(keys, intermediate_size=keys.size("intermediate_size"))
    hidden, biased = sizes.hidden_size, keys.flag("attention_bias")
    layer = [
        *layer_norm("input_layernorm", hidden),
        *layer_norm("post_attention_layernorm", hidden),
        *linear("attention.query_key_value", hidden, 3 * hidden, bias=biased, kind="attention"),
        *linear("attention.dense", hidden, hidden, bias=biased, kind="attention"),
        *_mlp(hidden, sizes.intermediate_size, bias=True),
    ]
    embeddings = token_embedding(sizes, "embed_in")
    norm = layer_norm("final_layer_norm", hidden)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm))


def _bloom(keys: Keys) -> Parts:
    """A norm right after the token embedding; positions by ALiBi, which has no parameters."""
    hidden = keys.size("hidden_size")
    sizes = _sizes(keys, heads="n_head", layers="n_layer", intermediate_size=4 * hidden)
    layer = [
        *layer_norm("input_layernorm", hidden),
        *linear("self_attention.query_key_value", hidden, 3 * hidden, bias=True, kind="attention"),
        *linear("self_attention.dense", hidden, hidden, bias=True, kind="attention"),
        *layer_norm("post_attention_layernorm", hidden),
        *_mlp(hidden, 4 * hidden, bias=True),
    ]
    embeddings = [
        *token_embedding(sizes, "word_embeddings"),
        *layer_norm("word_embeddings_layernorm", hidden),
    ]
    norm = layer_norm("ln_f", hidden)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm, layers="h"))


def _falcon(keys: Keys) -> Parts:
    """The old decoder has one key-value head (or all), the new one `num_kv_heads` of them."""
    heads, hidden = keys.size("num_attention_heads"), keys.size("hidden_size")
    new = keys.flag("new_decoder_architecture")
    key_value_heads = keys.optional_size("num_kv_heads") or heads
    if not new:
        key_value_heads = 1 if keys.flag("multi_query") else heads
    elif heads % key_value_heads:
        keys.divide("num_attention_heads", "num_kv_heads")
    inner = keys.optional_size("ffn_hidden_size") or 4 * hidden
    sizes = _sizes(keys, intermediate_size=inner, key_value_heads=key_value_heads)
    biased, fused = keys.flag("bias"), sizes.query_size + 2 * sizes.key_value_size
    layer = [
        *linear("self_attention.query_key_value", hidden, fused, bias=biased, kind="attention"),
        *linear("self_attention.dense", hidden, hidden, bias=biased, kind="attention"),
        *_mlp(hidden, inner, bias=biased),
        *(tensor for name in _falcon_norms(keys, new=new) for tensor in layer_norm(name, hidden)),
    ]
    embeddings = token_embedding(sizes, "word_embeddings")
    norm = layer_norm("ln_f", hidden)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm, layers="h"))


def _falcon_norms(keys: Keys, *, new: bool) -> tuple[str, ...]:
    """Attention and MLP in turn have a norm each; side by side they share one, or have one each."""
    if not keys.flag("parallel_attn"):
        return ("post_attention_layernorm", "input_layernorm")
    number = keys.optional_size("num_ln_in_parallel_attn")
    if number is None and new:
        number = 2
    return ("ln_attn", "ln_mlp") if number == 2 else ("input_layernorm",)


def _mpt(keys: Keys) -> Parts:
    """No biases, whatever `no_bias` says, and an MLP of four times the width, whatever `expansion_ratio`."""
    hidden = keys.size("d_model")
    sizes = _sizes(
        keys,
        hidden="d_model",
        heads="n_heads",
        layers="n_layers",
        positions="max_seq_len",
        intermediate_size=4 * hidden,
    )
    layer = [
        *rms_norm("norm_1", hidden),
        *linear("attn.Wqkv", hidden, 3 * hidden, kind="attention"),
        *linear("attn.out_proj", hidden, hidden, kind="attention"),
        *rms_norm("norm_2", hidden),
        *linear("ffn.up_proj", hidden, 4 * hidden, kind="mlp"),
        *linear("ffn.down_proj", 4 * hidden, hidden, kind="mlp"),
    ]
    embeddings = token_embedding(sizes, "wte")
    norm = rms_norm("norm_f", hidden)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm, layers="blocks"))


def _mlp(hidden: int, inner: int, *, bias: bool) -> list[Tensor]:
    return [
        *linear("mlp.dense_h_to_4h", hidden, inner, bias=bias, kind="mlp"),
        *linear("mlp.dense_4h_to_h", inner, hidden, bias=bias, kind="mlp"),
    ]


def _sizes(
    keys: Keys,
    *,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    layers: str = "num_hidden_layers",
    positions: str = "max_position_embeddings",
    intermediate_size: int,
    key_value_heads: int | None = None,
) -> Sizes:
    return Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size(hidden),
        intermediate_size=intermediate_size,
        num_hidden_layers=keys.size(layers),
        num_attention_heads=keys.size(heads),
        num_key_value_heads=key_value_heads or keys.size(heads),
        head_dim=keys.divide(hidden, heads),
        max_position_embeddings=keys.optional_size(positions),
    )


MODEL_TYPES = (
    ModelType(
        "gpt_neox",
        decoder_classes("GPTNeoX", _gpt_neox, prefix="gpt_neox", labels=("sequence",)),
        defaults={
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "max_position_embeddings": 2048,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    ModelType(
        "bloom",
        decoder_classes("Bloom", _bloom, prefix="transformer", labels=("sequence",)),
        defaults={
            "vocab_size": 250880,
            "hidden_size": 64,
            "n_layer": 2,
            "n_head": 8,
            "tie_word_embeddings": True,
        },
        aliases={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "n_embed": "hidden_size"},
        has_sdpa=False,
    ),
    ModelType(
        "falcon",
        decoder_classes("Falcon", _falcon, prefix="transformer", labels=("sequence",)),
        defaults={
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "max_position_embeddings": 2048,
            "multi_query": True,
            "parallel_attn": True,
            "tie_word_embeddings": True,
        },
        aliases={"n_embed": "hidden_size"},
    ),
    ModelType(
        "mpt",
        decoder_classes("Mpt", _mpt, prefix="transformer", labels=("sequence",)),
        defaults={
            "vocab_size": 50368,
            "d_model": 2048,
            "n_layers": 24,
            "n_heads": 16,
            "max_seq_len": 2048,
            "tie_word_embeddings": True,
        },
        aliases={
            "num_attention_heads": "n_heads",
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
        },
        has_sdpa=False,
    ),
)
