"""Classifies a text, or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import ModelKind
from zerokit.data.encoding import encode_whole
from zerokit.errors import DataError, visible
from zerokit.recipe.model import Columns, Format
from zerokit.reporting.tables import STRONG, StyledLine
from zerokit.training.examples import IGNORED, Encoded, Encoder, text_of
from zerokit.training.formats import pair_of
from zerokit.training.tasks.labels import LabelEncoder, LabelledTask, classes_of, found_labels, names_of
from zerokit.training.tasks.task import Collator, ratio

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.data.row_dataset import RowDataset


class SequenceClassification(LabelledTask):
    """Cross-entropy of the classes; accuracy and F1."""

    model = ModelKind("AutoModelForSequenceClassification", "a model for sequence classification", "BERT")
    formats = ("text_pair_label", "text_label")
    peft_type = "SEQ_CLS"
    counts = "example"

    def with_labels_of(
        self, examples: RowDataset, columns: Columns, known: Sequence[str], where: str
    ) -> SequenceClassification:
        names = names_of(examples, columns.label)
        found = found_labels(_single(examples.column(columns.label), columns.label, where), columns.label)
        most = len(examples) // 2 if names is None else None
        labels = classes_of(found if names is None else names, known, columns.label, where, most=most)
        return replace(self, labels=labels, names=names)

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        if config.pad_token_id is None:  # by which a decoder finds the last token of a text
            config.pad_token_id = tokenizer.pad_token_id

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, columns, self, is_pair=format_ == "text_pair_label")

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        from transformers import DataCollatorWithPadding

        return _Collator(DataCollatorWithPadding(tokenizer, pad_to_multiple_of=self.pad_to()), model)

    def blank(self) -> dict[str, Any]:
        return {"input_ids": [0], "labels": IGNORED}

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        yield [("label: ", ""), (visible(self.labels[sequence["labels"]]), STRONG)]
        for line in tokenizer.decode(sequence["input_ids"]).split("\n"):
            yield [(visible(line), "")]

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """For each class: correct predictions, then occurrences, then predictions."""
        import torch

        is_target = inputs["labels"] != IGNORED
        truth, said = inputs["labels"][is_target], output.logits[is_target].argmax(-1)
        counted = (truth[truth == said], truth, said)
        return torch.cat([torch.bincount(classes, minlength=len(self.labels)) for classes in counted]).tolist()

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """Accuracy, and the mean of F1 over the classes that exist or were predicted.

        As scikit-learn's ``f1_score(average="macro")`` (3.4.4.9 of its user guide), with 0 for a class
        without hits.
        """
        size = len(self.labels)
        right, there, said = (scores[start : start + size] for start in range(0, 3 * size, size))
        counts = zip(right, there, said, strict=True)
        f1 = [2 * hits / (truth + guesses) for hits, truth, guesses in counts if truth + guesses]
        return {"accuracy": ratio(sum(right), sum(there)), "f1": ratio(sum(f1), len(f1))}


def _single(labels: Iterator[Any], column: str, where: str) -> Iterator[Any]:
    """The labels, checked to be no list and no object."""
    for label in labels:
        if isinstance(label, list | dict):
            raise DataError(
                f"'{column}' is a list or an object: each text has one label here, not several",
                where=where,
                hint="Write one text or whole number, or train a model for each label",
            )
        yield label


class _Encoder(LabelEncoder):
    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, columns: Columns, task: SequenceClassification, *, is_pair: bool
    ) -> None:
        super().__init__(tokenizer, columns, task)
        self._is_pair = is_pair

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        label, first, pair = self.columns.label, self.columns.text, None
        if self._is_pair:
            first, second = pair_of(self.columns, example)
            pair = text_of(example, second)
        encoded, is_cut = encode_whole(self.tokenizer, text_of(example, first), most=self.seq_len, pair=pair)
        features = {"input_ids": encoded["input_ids"], "labels": self.label_id(example[label], label)}
        if pair is not None and _SEGMENTS in encoded:
            features[_SEGMENTS] = encoded[_SEGMENTS]
        return [Encoded(features, is_cut, bool(features["input_ids"]))]


_SEGMENTS = "token_type_ids"
"""Number of the text that a token belongs to."""


class _Collator:
    """Pads; adds segments for models with segment embeddings."""

    def __init__(self, pad: Collator, model: Any) -> None:
        self._pad = pad
        config = getattr(model, "config", None)
        self._has_segments = (getattr(config, "type_vocab_size", None) or 0) > 1

    def __call__(self, features: list[dict[str, Any]]) -> Mapping[str, torch.Tensor]:
        segmented = any(_SEGMENTS in feature for feature in features)
        made = []
        for feature in features:
            kept = {name: values for name, values in feature.items() if name != _SEGMENTS}
            if segmented and self._has_segments:
                kept[_SEGMENTS] = feature.get(_SEGMENTS) or [0] * len(feature["input_ids"])
            made.append(kept)
        return self._pad(made)
