"""GPT-2 and its heirs GPT-BigCode (StarCoder), GPT-Neo and GPT-J.

Source: transformers' `modeling_*.py` and `configuration_*.py` of gpt2, gpt_bigcode, gpt_neo and gptj.
"""

from __future__ import annotations

from zerokit.models.decoder import decoder, decoder_classes, token_embedding
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, layer_norm, linear


def _gpt2(keys: Keys) -> Parts:
    """Conv1D weights (inputs first), and learned positions."""
    keys.not_counted("add_cross_attention")
    sizes = _sizes(keys, key_value_heads=keys.size("n_head"))
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    layer = [
        *layer_norm("ln_1", hidden),
        *linear("attn.c_attn", hidden, 3 * hidden, bias=True, transposed=True, kind="attention"),
        *linear("attn.c_proj", hidden, hidden, bias=True, transposed=True, kind="attention"),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, inner, bias=True, transposed=True, kind="mlp"),
        *linear("mlp.c_proj", inner, hidden, bias=True, transposed=True, kind="mlp"),
    ]
    return _assembled(sizes, layer, positions=True)


def _gpt_bigcode(keys: Keys) -> Parts:
    """With `multi_query`, all heads share one key and one value."""
    keys.not_counted("add_cross_attention")
    heads = keys.size("n_head")
    sizes = _sizes(keys, key_value_heads=1 if keys.flag("multi_query") else heads)
    hidden, fused = sizes.hidden_size, sizes.query_size + 2 * sizes.key_value_size
    layer = [
        *layer_norm("ln_1", hidden),
        *linear("attn.c_attn", hidden, fused, bias=True, kind="attention"),
        *linear("attn.c_proj", hidden, hidden, bias=True, kind="attention"),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, sizes.intermediate_size, bias=True, kind="mlp"),
        *linear("mlp.c_proj", sizes.intermediate_size, hidden, bias=True, kind="mlp"),
    ]
    return _assembled(sizes, layer, positions=True)


def _gptj(keys: Keys) -> Parts:
    """One norm per layer; rotary positions, which are no parameters; a bias in the head."""
    sizes = _sizes(keys, key_value_heads=keys.size("n_head"))
    hidden = sizes.hidden_size
    layer = [
        *layer_norm("ln_1", hidden),
        *_query_key_value("attn", hidden),
        *linear("attn.out_proj", hidden, hidden, kind="attention"),
        *linear("mlp.fc_in", hidden, sizes.intermediate_size, bias=True, kind="mlp"),
        *linear("mlp.fc_out", sizes.intermediate_size, hidden, bias=True, kind="mlp"),
    ]
    return _assembled(sizes, layer, positions=False)


def _gpt_neo(keys: Keys) -> Parts:
    """No biases on queries, keys and values."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_heads")
    sizes = Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.optional_size("intermediate_size") or 4 * hidden,
        num_hidden_layers=keys.size("num_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=keys.divide("hidden_size", "num_heads"),
        max_position_embeddings=keys.size("max_position_embeddings"),
    )
    layer = [
        *layer_norm("ln_1", hidden),
        *_query_key_value("attn.attention", hidden),
        *linear("attn.attention.out_proj", hidden, hidden, bias=True, kind="attention"),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, sizes.intermediate_size, bias=True, kind="mlp"),
        *linear("mlp.c_proj", sizes.intermediate_size, hidden, bias=True, kind="mlp"),
    ]
    return _assembled(sizes, layer, positions=True)


def _query_key_value(name: str, hidden: int) -> list[Tensor]:
    return [
        tensor
        for projection in ("k_proj", "v_proj", "q_proj")
        for tensor in linear(f"{name}.{projection}", hidden, hidden, kind="attention")
    ]


def _assembled(sizes: Sizes, layer: list[Tensor], *, positions: bool) -> Parts:
    embeddings = token_embedding(sizes, "wte")
    if positions:
        assert sizes.max_position_embeddings is not None
        embeddings += embedding("wpe", sizes.max_position_embeddings, sizes.hidden_size)
    norm = layer_norm("ln_f", sizes.hidden_size)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm, layers="h"))


def _sizes(keys: Keys, *, key_value_heads: int) -> Sizes:
    """The MLP is four times as wide as the hidden state unless `n_inner` says otherwise."""
    hidden = keys.size("n_embd")
    return Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.optional_size("n_inner") or 4 * hidden,
        num_hidden_layers=keys.size("n_layer"),
        num_attention_heads=keys.size("n_head"),
        num_key_value_heads=key_value_heads,
        head_dim=keys.divide("n_embd", "n_head"),
        max_position_embeddings=keys.size("n_positions"),
    )


_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

_GPT2 = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "tie_word_embeddings": True,
}

MODEL_TYPES = (
    ModelType(
        "gpt2",
        decoder_classes("GPT2", _gpt2, prefix="transformer", causal_lm="LMHeadModel", labels=("sequence",)),
        defaults=_GPT2,
        aliases=_ALIASES,
    ),
    ModelType(
        "gpt_bigcode",
        decoder_classes("GPTBigCode", _gpt_bigcode, prefix="transformer", labels=("sequence",)),
        defaults={**_GPT2, "multi_query": True},
        aliases=_ALIASES,
    ),
    ModelType(
        "gptj",
        decoder_classes(
            "GPTJ", _gptj, prefix="transformer", head_bias=lambda keys: True, labels=("sequence",)
        ),
        defaults={
            "vocab_size": 50400,
            "n_positions": 2048,
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "tie_word_embeddings": False,
        },
        aliases=_ALIASES,
        has_sdpa=False,
    ),
    ModelType(
        "gpt_neo",
        decoder_classes("GPTNeo", _gpt_neo, prefix="transformer", labels=("sequence",)),
        defaults={
            "vocab_size": 50257,
            "max_position_embeddings": 2048,
            "hidden_size": 2048,
            "num_layers": 24,
            "num_heads": 16,
            "tie_word_embeddings": True,
        },
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        has_sdpa=False,
    ),
)
