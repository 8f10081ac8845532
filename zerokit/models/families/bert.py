"""BERT, RoBERTa and XLM-RoBERTa; transformers counts decoders with cross attention.

Source: transformers' `modeling_*.py` of bert, roberta and xlm_roberta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zerokit.models.keys import Keys
from zerokit.models.parts import Build, Parts, Sizes
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
) -> dict[str, Build]:
    """The classes of BERT and RoBERTa; `module` is the module of the encoder."""

    def with_head(head: Head, *, pooled: bool, language_model: bool) -> Build:
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


def _roberta_classes(stem: str) -> dict[str, Build]:
    return _classes(
        stem,
        "roberta",
        language_models={"ForMaskedLM": _roberta_language_model, "ForCausalLM": _roberta_language_model},
        sequence=_roberta_sequence,
        pooled_sequence=False,
    )


CLASSES = {
    "bert": _classes(
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
    "roberta": _roberta_classes("Roberta"),
    "xlm-roberta": _roberta_classes("XLMRoberta"),
}
