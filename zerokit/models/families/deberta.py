"""DeBERTa v2 and v3: relative positions, and in some sizes a convolution beside the first layer.

Source: transformers' `modeling_*.py` and `configuration_*.py` of deberta_v2.
DeBERTa v3 is model type `deberta-v2`.
"""

from __future__ import annotations

from zerokit.models.families.bert import encoder_layer, encoder_sizes, masked_lm_head
from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, layer_norm, linear, repeated, under


def _deberta(keys: Keys) -> Parts:
    keys.not_counted("attention_head_size")
    sizes = encoder_sizes(keys)
    hidden, narrow = sizes.hidden_size, _embedding_size(keys)
    assert sizes.vocab_size is not None
    assert sizes.max_position_embeddings is not None
    layer = [
        *encoder_layer(sizes, projections=("query_proj", "key_proj", "value_proj")),
        *_position_projections(keys, hidden),
    ]
    tensors = embedding("embeddings.word_embeddings", sizes.vocab_size, narrow)
    if keys.flag("position_biased_input"):
        tensors += embedding("embeddings.position_embeddings", sizes.max_position_embeddings, narrow)
    token_types = keys.count("type_vocab_size")
    if token_types:
        tensors += embedding("embeddings.token_type_embeddings", token_types, narrow)
    if narrow != hidden:
        tensors += linear("embeddings.embed_proj", narrow, hidden, kind="embedding")
    tensors += layer_norm("embeddings.LayerNorm", hidden)
    tensors += repeated("encoder.layer", sizes.num_hidden_layers, layer)
    tensors += _relative_positions(keys, sizes)
    return Parts(sizes, tensors)


def _position_projections(keys: Keys, hidden: int) -> list[Tensor]:
    """Projections of the relative positions, unless they share those of keys and queries."""
    if not keys.flag("relative_attention") or keys.flag("share_att_key"):
        return []
    given = keys.value("pos_att_type") or []
    kinds = given.lower().split("|") if isinstance(given, str) else given
    if not isinstance(kinds, list):
        keys.fail("pos_att_type", "is neither a list nor a string", 'Write it like ["p2c", "c2p"]')
    kinds = [kind.strip() for kind in kinds if isinstance(kind, str)]
    names = [("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")]
    return [
        tensor
        for kind, name in names
        if kind in kinds
        for tensor in linear(f"attention.self.{name}", hidden, hidden, bias=True, kind="attention")
    ]


def _relative_positions(keys: Keys, sizes: Sizes) -> list[Tensor]:
    """The table of relative positions, its norm, and the convolution."""
    hidden, tensors = sizes.hidden_size, []
    if keys.flag("relative_attention"):
        farthest = keys.whole("max_relative_positions")
        buckets = keys.whole("position_buckets")
        assert sizes.max_position_embeddings is not None
        if farthest is None or farthest < 1:
            farthest = sizes.max_position_embeddings
        rows = buckets if buckets is not None and buckets > 0 else farthest
        tensors += embedding("encoder.rel_embeddings", 2 * rows, hidden)
    if "layer_norm" in [part.strip() for part in keys.text("norm_rel_ebd").lower().split("|")]:
        tensors += layer_norm("encoder.LayerNorm", hidden)
    width = keys.count("conv_kernel_size")
    if width:
        groups = keys.optional_size("conv_groups") or 1
        if hidden % groups:
            keys.divide("hidden_size", "conv_groups")
        tensors += [
            Tensor("encoder.conv.conv.weight", (hidden, hidden // groups, width), "other"),
            Tensor("encoder.conv.conv.bias", (hidden,), "bias"),
            *layer_norm("encoder.conv.LayerNorm", hidden),
        ]
    return tensors


def _language_model(keys: Keys) -> Parts:
    """The newer head (`legacy` false) multiplies with the embedding itself."""
    parts = _deberta(keys)
    if keys.flag("legacy"):
        tied = keys.flag("tie_word_embeddings")
        head = masked_lm_head(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions",
            width=_embedding_size(keys),
            sizes=parts.sizes,
            tied=tied,
        )
    else:
        tied = True
        head = masked_lm_head(
            "lm_predictions.lm_head.dense",
            "lm_predictions.lm_head.LayerNorm",
            "",
            "lm_predictions.lm_head",
            width=parts.sizes.hidden_size,
            sizes=parts.sizes,
            tied=True,
        )
    return Parts(parts.sizes, under("deberta", parts.tensors) + head, tied=tied)


def _sequence(keys: Keys) -> Parts:
    parts = _deberta(keys)
    width = keys.optional_size("pooler_hidden_size") or parts.sizes.hidden_size
    head = [
        *linear("pooler.dense", width, width, bias=True, kind="other"),
        *linear("classifier", parts.sizes.hidden_size, keys.num_labels(), bias=True, kind="other"),
    ]
    return Parts(parts.sizes, under("deberta", parts.tensors) + head)


def _tokens(keys: Keys) -> Parts:
    parts = _deberta(keys)
    head = linear("classifier", parts.sizes.hidden_size, keys.num_labels(), bias=True, kind="other")
    return Parts(parts.sizes, under("deberta", parts.tensors) + head)


def _answer_span(keys: Keys) -> Parts:
    parts = _deberta(keys)
    head = linear("qa_outputs", parts.sizes.hidden_size, keys.num_labels(), bias=True, kind="other")
    return Parts(parts.sizes, under("deberta", parts.tensors) + head)


def _embedding_size(keys: Keys) -> int:
    return keys.optional_size("embedding_size") or keys.size("hidden_size")


MODEL_TYPES = (
    ModelType(
        "deberta-v2",
        {
            "DebertaV2ForMaskedLM": _language_model,
            "DebertaV2Model": _deberta,
            "DebertaV2ForSequenceClassification": _sequence,
            "DebertaV2ForTokenClassification": _tokens,
            "DebertaV2ForQuestionAnswering": _answer_span,
        },
        defaults={
            "vocab_size": 128100,
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "intermediate_size": 6144,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "max_relative_positions": -1,
            "position_biased_input": True,
            "legacy": True,
            "tie_word_embeddings": True,
        },
        has_sdpa=False,
    ),
)
