"""A label of a text: of its tone, its topic, its language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import ModelKind
from zerokit.data.encoding import encode_whole
from zerokit.errors import visible
from zerokit.reporting.tables import STRONG
from zerokit.training.examples import IGNORED, Encoded, Encoder, text_of
from zerokit.training.tasks.labels import (
    check_classes,
    config_of_labels,
    found_labels,
    id_of,
    label_text,
    names_of,
)
from zerokit.training.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.recipe.model import Columns, Format
    from zerokit.reporting.tables import StyledLine
    from zerokit.training.tasks.task import Collator


class SequenceClassification(Task):
    """Cross-entropy of the classes; accuracy and F1."""

    model = ModelKind("AutoModelForSequenceClassification", "a model for sequence classification", "BERT")
    formats = ("text_label",)
    peft_type = "SEQ_CLS"
    needs = "pad"
    counts = "example"

    def with_labels_of(
        self, examples: Dataset, columns: Columns, known: Sequence[str], where: str
    ) -> SequenceClassification:
        names = names_of(examples.features[columns.label])
        found = names or found_labels(examples.unique(columns.label), columns.label)
        labels = (
            tuple(known) if set(found) <= set(known) and found else check_classes(found, columns.label, where)
        )
        return replace(self, labels=labels, names=names)

    def config_keys(self) -> dict[str, Any]:
        return config_of_labels(self.labels)

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        if config.pad_token_id is None:  # by which a decoder finds the last token of a text
            config.pad_token_id = tokenizer.pad_token_id

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, columns, self)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        from transformers import DataCollatorWithPadding

        return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=self.pad_to())  # type: ignore[no-any-return]

    def blank(self) -> dict[str, Any]:
        return {"input_ids": [0], "labels": IGNORED}

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        yield [("label: ", ""), (visible(self.labels[sequence["labels"]]), STRONG)]
        for line in tokenizer.decode(sequence["input_ids"]).split("\n"):
            yield [(visible(line), "")]

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """The confusion matrix, row by row: how often a class (row) was taken for another (column)."""
        import torch

        labels, size = inputs["labels"], len(self.labels)
        is_target = labels != IGNORED
        pairs = labels[is_target] * size + output.logits[is_target].argmax(-1)
        return torch.bincount(pairs, minlength=size * size).tolist()

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """Accuracy, and the mean of F1 over the classes that there are or that were predicted.

        As scikit-learn's ``f1_score(average="macro")`` (3.4.4.9 of its user guide), with 0 for a class of
        which nothing was found.
        """
        size = len(self.labels)
        rows = [scores[start : start + size] for start in range(0, size * size, size)]
        right = [rows[index][index] for index in range(size)]
        seen = [sum(rows[index]) + sum(row[index] for row in rows) for index in range(size)]
        f1 = [2 * hits / total for hits, total in zip(right, seen, strict=True) if total]
        return {"accuracy": sum(right) / sum(scores), "f1": sum(f1) / len(f1)}


class _Encoder(Encoder):
    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, columns: Columns, task: SequenceClassification
    ) -> None:
        self.tokenizer = tokenizer
        self.columns = columns
        self.seq_len = task.section.seq_len
        self.names = task.names
        self.ids = {label: index for index, label in enumerate(task.labels)}

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        column = self.columns.label
        encoded, is_cut = encode_whole(self.tokenizer, text_of(example, self.columns.text), most=self.seq_len)
        label = label_text(example[column], self.names, column)
        features = {"input_ids": encoded["input_ids"], "labels": id_of(label, self.ids, column)}
        return [Encoded(features, is_cut, bool(features["input_ids"]))]
