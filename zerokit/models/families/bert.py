"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT.

Source: transformers' `modeling_*.py` and `configuration_*.py` of bert, roberta, xlm_roberta and distilbert.
Decoders with cross attention are counted by transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zerokit.models.keys import Keys
from zerokit.models.parts import ModelType, Parts, Sizes
from zerokit.models.tensors import Tensor, embedding, layer_norm, linear, repeated, under

Head = Callable[[Keys, Sizes], list[Tensor]]


def _bert(keys: Keys) -> Parts:
    """The norms follow attention and MLP."""
    keys.not_counted("add_cross_attention")
    vocab_size, positions = keys.size("vocab_size"), keys.size("max_position_embeddings")
    hidden, inner = keys.size("hidden_size"), keys.size("intermediate_size")
    heads = keys.size("num_attention_heads")
    sizes = Sizes(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=keys.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=keys.divide("hidden_size", "num_attention_heads"),
        max_position_embeddings=positions,
    )
    layer = [
        *(
            tensor
            for name in ("query", "key", "value")
            for tensor in linear(f"attention.self.{name}", hidden, hidden, bias=True, kind="attention")
        ),
        *linear("attention.output.dense", hidden, hidden, bias=True, kind="attention"),
        *layer_norm("attention.output.LayerNorm", hidden),
        *linear("intermediate.dense", hidden, inner, bias=True, kind="mlp"),
        *linear("output.dense", inner, hidden, bias=True, kind="mlp"),
        *layer_norm("output.LayerNorm", hidden),
    ]
    tensors = [
        *embedding("embeddings.word_embeddings", vocab_size, hidden),
        *embedding("embeddings.position_embeddings", positions, hidden),
        *embedding("embeddings.token_type_embeddings", keys.count("type_vocab_size"), hidden),
        *layer_norm("embeddings.LayerNorm", hidden),
        *repeated("encoder.layer", sizes.num_hidden_layers, layer),
    ]
    return Parts(sizes, tensors)


def _pooler(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return linear("pooler.dense", sizes.hidden_size, sizes.hidden_size, bias=True, kind="other")


def _classes(
    stem: str, module: str, *, language_models: Mapping[str, Head], sequence: Head, pooled_sequence: bool
) -> dict[str, Callable[[Keys], Parts]]:
    """The classes of BERT and RoBERTa; `module` is the module of the encoder."""

    def with_head(head: Head, *, pooled: bool, language_model: bool) -> Callable[[Keys], Parts]:
        def build(keys: Keys) -> Parts:
            parts = _bert(keys)
            encoder = parts.tensors + (_pooler(keys, parts.sizes) if pooled else [])
            tied = language_model and keys.flag("tie_word_embeddings")
            return Parts(parts.sizes, under(module, encoder) + head(keys, parts.sizes), tied=tied)

        return build

    def alone(keys: Keys) -> Parts:
        parts = _bert(keys)
        return Parts(parts.sizes, parts.tensors + _pooler(keys, parts.sizes))

    classes = {
        f"{stem}{name}": with_head(head, pooled=name == "ForPreTraining", language_model=True)
        for name, head in language_models.items()
    }
    classes[f"{stem}Model"] = alone
    classes[f"{stem}ForSequenceClassification"] = with_head(
        sequence, pooled=pooled_sequence, language_model=False
    )
    classes[f"{stem}ForTokenClassification"] = with_head(_classifier, pooled=False, language_model=False)
    classes[f"{stem}ForQuestionAnswering"] = with_head(_answer_span, pooled=False, language_model=False)
    return classes


def _classifier(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return linear("classifier", sizes.hidden_size, keys.num_labels(), bias=True, kind="other")


def _answer_span(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return linear("qa_outputs", sizes.hidden_size, keys.num_labels(), bias=True, kind="other")


def _masked_lm_head(keys: Keys, sizes: Sizes, transform: str, norm: str, projection: str) -> list[Tensor]:
    """A transform of the hidden state and the projection to logits.

    The projection has a weight and a bias of its own unless it is tied to the embedding. The module above it
    has one more bias.
    """
    hidden, vocab_size = sizes.hidden_size, sizes.vocab_size
    assert vocab_size is not None
    tied = keys.flag("tie_word_embeddings")
    return [
        *linear(transform, hidden, hidden, bias=True, kind="other"),
        *layer_norm(norm, hidden),
        Tensor(f"{projection.rpartition('.')[0]}.bias", (vocab_size,), "bias"),
        *([] if tied else linear(projection, hidden, vocab_size, bias=True, kind="embedding")),
    ]


def _bert_language_model(keys: Keys, sizes: Sizes) -> list[Tensor]:
    transform = "cls.predictions.transform"
    return _masked_lm_head(
        keys, sizes, f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions.decoder"
    )


def _bert_pretraining(keys: Keys, sizes: Sizes) -> list[Tensor]:
    """Masked-LM and next-sentence heads."""
    relation = linear("cls.seq_relationship", sizes.hidden_size, 2, bias=True, kind="other")
    return _bert_language_model(keys, sizes) + relation


def _roberta_language_model(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return _masked_lm_head(keys, sizes, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")


def _roberta_sequence(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return [
        *linear("classifier.dense", sizes.hidden_size, sizes.hidden_size, bias=True, kind="other"),
        *linear("classifier.out_proj", sizes.hidden_size, keys.num_labels(), bias=True, kind="other"),
    ]


def _distilbert(keys: Keys) -> Parts:
    hidden, heads, inner = keys.size("dim"), keys.size("n_heads"), keys.size("hidden_dim")
    sizes = Sizes(
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=keys.size("n_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=keys.divide("dim", "n_heads"),
        max_position_embeddings=keys.size("max_position_embeddings"),
    )
    layer = [
        *(
            tensor
            for name in ("q_lin", "k_lin", "v_lin", "out_lin")
            for tensor in linear(f"attention.{name}", hidden, hidden, bias=True, kind="attention")
        ),
        *layer_norm("sa_layer_norm", hidden),
        *linear("ffn.lin1", hidden, inner, bias=True, kind="mlp"),
        *linear("ffn.lin2", inner, hidden, bias=True, kind="mlp"),
        *layer_norm("output_layer_norm", hidden),
    ]
    tensors = [
        *embedding("embeddings.word_embeddings", keys.size("vocab_size"), hidden),
        *embedding("embeddings.position_embeddings", keys.size("max_position_embeddings"), hidden),
        *layer_norm("embeddings.LayerNorm", hidden),
        *repeated("transformer.layer", sizes.num_hidden_layers, layer),
    ]
    return Parts(sizes, tensors)


def _distilbert_with(head: Head, *, language_model: bool = False) -> Callable[[Keys], Parts]:
    def build(keys: Keys) -> Parts:
        parts = _distilbert(keys)
        tied = language_model and keys.flag("tie_word_embeddings")
        return Parts(parts.sizes, under("distilbert", parts.tensors) + head(keys, parts.sizes), tied=tied)

    return build


def _distilbert_language_model(keys: Keys, sizes: Sizes) -> list[Tensor]:
    """The projection has the only bias."""
    assert sizes.vocab_size is not None
    projector = linear("vocab_projector", sizes.hidden_size, sizes.vocab_size, bias=True, kind="embedding")
    return [
        *linear("vocab_transform", sizes.hidden_size, sizes.hidden_size, bias=True, kind="other"),
        *layer_norm("vocab_layer_norm", sizes.hidden_size),
        *(projector[1:] if keys.flag("tie_word_embeddings") else projector),
    ]


def _distilbert_sequence(keys: Keys, sizes: Sizes) -> list[Tensor]:
    return [
        *linear("pre_classifier", sizes.hidden_size, sizes.hidden_size, bias=True, kind="other"),
        *_classifier(keys, sizes),
    ]


_BERT_BASE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}


def _roberta_classes(stem: str) -> dict[str, Callable[[Keys], Parts]]:
    return _classes(
        stem,
        "roberta",
        language_models={"ForMaskedLM": _roberta_language_model, "ForCausalLM": _roberta_language_model},
        sequence=_roberta_sequence,
        pooled_sequence=False,
    )


MODEL_TYPES = (
    ModelType(
        "bert",
        _classes(
            "Bert",
            "bert",
            language_models={
                "ForMaskedLM": _bert_language_model,
                "LMHeadModel": _bert_language_model,
                "ForPreTraining": _bert_pretraining,
            },
            sequence=_classifier,
            pooled_sequence=True,
        ),
        defaults=_BERT_BASE,
    ),
    ModelType("roberta", _roberta_classes("Roberta"), defaults={**_BERT_BASE, "vocab_size": 50265}),
    ModelType("xlm-roberta", _roberta_classes("XLMRoberta"), defaults=_BERT_BASE),
    ModelType(
        "distilbert",
        {
            "DistilBertForMaskedLM": _distilbert_with(_distilbert_language_model, language_model=True),
            "DistilBertModel": _distilbert,
            "DistilBertForSequenceClassification": _distilbert_with(_distilbert_sequence),
            "DistilBertForTokenClassification": _distilbert_with(_classifier),
            "DistilBertForQuestionAnswering": _distilbert_with(_answer_span),
        },
        defaults={
            "vocab_size": 30522,
            "max_position_embeddings": 512,
            "n_layers": 6,
            "n_heads": 12,
            "dim": 768,
            "hidden_dim": 3072,
            "tie_word_embeddings": True,
        },
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    ),
)
