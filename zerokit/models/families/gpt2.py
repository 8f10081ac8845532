"""GPT-2 (transformers' `modeling_gpt2.py`)."""

from __future__ import annotations

from zerokit.models.decoder import decoder, decoder_classes, token_embedding
from zerokit.models.keys import Keys
from zerokit.models.parts import Parts, Sizes
from zerokit.models.tensors import embedding, layer_norm, linear


def _gpt2(keys: Keys) -> Parts:
    """Conv1D weights (inputs first), learned positions, an MLP of 4 x hidden unless `n_inner` is given."""
    keys.not_counted("add_cross_attention")
    hidden, positions = keys.size("n_embd"), keys.size("n_positions")
    inner = keys.optional_size("n_inner") or 4 * hidden
    sizes = Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=keys.size("n_layer"),
        num_attention_heads=keys.size("n_head"),
        num_key_value_heads=keys.size("n_head"),
        head_dim=keys.divide("n_embd", "n_head"),
        max_position_embeddings=positions,
    )
    layer = [
        *layer_norm("ln_1", hidden),
        *linear("attn.c_attn", hidden, 3 * hidden, bias=True, transposed=True, kind="attention"),
        *linear("attn.c_proj", hidden, hidden, bias=True, transposed=True, kind="attention"),
        *layer_norm("ln_2", hidden),
        *linear("mlp.c_fc", hidden, inner, bias=True, transposed=True, kind="mlp"),
        *linear("mlp.c_proj", inner, hidden, bias=True, transposed=True, kind="mlp"),
    ]
    embeddings = token_embedding(sizes, "wte") + embedding("wpe", positions, hidden)
    norm = layer_norm("ln_f", hidden)
    return Parts(sizes, decoder(sizes, layer, embeddings=embeddings, final_norm=norm, layers="h"))


CLASSES = {
    "gpt2": decoder_classes(
        "GPT2", _gpt2, prefix="transformer", causal_lm="LMHeadModel", labels=("sequence",)
    ),
}
