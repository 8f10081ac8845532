"""T5 (also v1.1, Flan-T5) and mT5.

Source: transformers' `modeling_*.py` of t5 and mt5.

Configs with `"tie_word_embeddings": false` (v1.1, Flan-T5, mT5) have a separate output matrix. transformers 5
ties it when it builds the model, and unties it when it loads a checkpoint with both. The count is that of the
built model; a note says what a checkpoint adds.
"""

from __future__ import annotations

from dataclasses import replace

from zerokit.models.keys import Keys
from zerokit.models.parts import Build, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, linear, repeated, rms_norm, under


def _sizes(keys: Keys) -> Sizes:
    heads = keys.size("num_heads")
    return Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=keys.size("d_model"),
        intermediate_size=keys.size("d_ff"),
        num_hidden_layers=keys.size("num_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=keys.size("d_kv"),
        max_position_embeddings=None,
    )


def _attention(sizes: Sizes, name: str) -> list[Tensor]:
    hidden, inner = sizes.hidden_size, sizes.query_size
    return [
        *(
            tensor
            for projection in ("q", "k", "v")
            for tensor in linear(f"{name}.{projection}", hidden, inner, kind="attention")
        ),
        *linear(f"{name}.o", inner, hidden, kind="attention"),
    ]


def _feed_forward(keys: Keys, sizes: Sizes) -> list[Tensor]:
    """A gated activation (`gated-gelu`) has two input projections."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    words = keys.text("feed_forward_proj").split("-")
    if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
        keys.fail("feed_forward_proj", f'is "{"-".join(words)}"', 'Write it like "relu" or "gated-gelu"')
    into = ("wi_0", "wi_1") if words[0] == "gated" else ("wi",)
    return [
        *(tensor for name in into for tensor in linear(f"DenseReluDense.{name}", hidden, inner, kind="mlp")),
        *linear("DenseReluDense.wo", inner, hidden, kind="mlp"),
    ]


def _stack(keys: Keys, sizes: Sizes, *, num_layers: int, cross_attention: bool) -> list[Tensor]:
    """Encoder or decoder; the first layer has a table of relative positions."""
    parts = [_attention(sizes, "SelfAttention")]
    if cross_attention:
        parts.append(_attention(sizes, "EncDecAttention"))
    parts.append(_feed_forward(keys, sizes))
    block = [
        tensor
        for index, part in enumerate(parts)
        for tensor in under(f"layer.{index}", part + rms_norm("layer_norm", sizes.hidden_size))
    ]
    rows = keys.size("relative_attention_num_buckets")
    table = Tensor("relative_attention_bias.weight", (rows, sizes.num_attention_heads), "attention")
    own = under("layer.0.SelfAttention", [table])
    behind = len(parts[0])  # its attention's projections
    return [
        *repeated("block", num_layers, block[:behind]),
        *repeated("block", min(1, num_layers), own),
        *repeated("block", num_layers, block[behind:]),
        *rms_norm("final_layer_norm", sizes.hidden_size),
    ]


def _encoder(keys: Keys) -> Parts:
    sizes = _sizes(keys)
    stack = _stack(keys, sizes, num_layers=sizes.num_hidden_layers, cross_attention=False)
    shared = embedding("shared", keys.size("vocab_size"), sizes.hidden_size)
    return Parts(sizes, shared + under("encoder", stack))


def _encoder_decoder(keys: Keys) -> Parts:
    parts = _encoder(keys)
    # If the encoder's layers are spelled `num_hidden_layers`, transformers applies them later: not to the
    # decoder.
    num_layers = keys.optional_size("num_decoder_layers") or keys.own_size("num_layers")
    decoder = _stack(keys, parts.sizes, num_layers=num_layers, cross_attention=True)
    return Parts(parts.sizes, parts.tensors + under("decoder", decoder), is_encoder_decoder=True)


def _language_model(keys: Keys) -> Parts:
    parts = _encoder_decoder(keys)
    notes: tuple[str, ...] = ()
    if keys.value("tie_word_embeddings") is False:
        elements = keys.size("vocab_size") * parts.sizes.hidden_size
        notes = (
            f"its checkpoints may hold an output matrix of their own (lm_head.weight, {elements:,} "
            "parameters more), which transformers 5 builds tied to the embedding and loads untied",
        )
    return replace(parts, tied=True, notes=notes)


def _classes(stem: str) -> dict[str, Build]:
    return {
        f"{stem}ForConditionalGeneration": _language_model,
        f"{stem}Model": _encoder_decoder,
        f"{stem}EncoderModel": _encoder,
    }


CLASSES = {"t5": _classes("T5"), "mt5": _classes("MT5")}
