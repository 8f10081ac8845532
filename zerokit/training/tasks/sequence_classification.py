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
from zerokit.training.tasks.labels import LabelEncoder, LabelledTask, classes_of, found_labels, names_of

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.recipe.model import Columns, Format
    from zerokit.reporting.tables import StyledLine
    from zerokit.training.tasks.task import Collator


class SequenceClassification(LabelledTask):
    """Cross-entropy of the classes; accuracy and F1."""

    model = ModelKind("AutoModelForSequenceClassification", "a model for sequence classification", "BERT")
    formats = ("text_label",)
    peft_type = "SEQ_CLS"
    counts = "example"

    def with_labels_of(
        self, examples: Dataset, columns: Columns, known: Sequence[str], where: str
    ) -> SequenceClassification:
        names = names_of(examples.features[columns.label])
        found = names or found_labels(examples.unique(columns.label), columns.label)
        most = len(examples) // 2 if names is None else None
        labels = classes_of(found, known, columns.label, where, most=most)
        return replace(self, labels=labels, names=names)

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
        """Of each class, how often it was told right; then how often it is there, and was predicted."""
        import torch

        is_target = inputs["labels"] != IGNORED
        truth, said = inputs["labels"][is_target], output.logits[is_target].argmax(-1)
        counted = (truth[truth == said], truth, said)
        return torch.cat([torch.bincount(one, minlength=len(self.labels)) for one in counted]).tolist()

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """Accuracy, and the mean of F1 over the classes that there are or that were predicted.

        As scikit-learn's ``f1_score(average="macro")`` (3.4.4.9 of its user guide), with 0 for a class of
        which nothing was found.
        """
        size = len(self.labels)
        right, there, said = (scores[start : start + size] for start in range(0, 3 * size, size))
        counts = zip(right, there, said, strict=True)
        f1 = [2 * hits / (truth + guesses) for hits, truth, guesses in counts if truth + guesses]
        return {"accuracy": sum(right) / sum(there), "f1": sum(f1) / len(f1)}


class _Encoder(LabelEncoder):
    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        column = self.columns.label
        encoded, is_cut = encode_whole(self.tokenizer, text_of(example, self.columns.text), most=self.seq_len)
        features = {"input_ids": encoded["input_ids"], "labels": self.label_id(example[column], column)}
        return [Encoded(features, is_cut, bool(features["input_ids"]))]
