"""Tags each word: named entities, parts of speech."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import ModelKind
from zerokit.data.encoding import encode_whole, value_kind
from zerokit.errors import visible
from zerokit.recipe.model import Columns, Format
from zerokit.reporting.tables import STRONG, StyledLine
from zerokit.training.examples import IGNORED, Encoded, Encoder, UnusableError
from zerokit.training.tasks.labels import LabelEncoder, LabelledTask, classes_of, found_labels, names_of
from zerokit.training.tasks.task import Collator, ratio
from zerokit.training.tokenizer import FAST, check_maps_words

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from zerokit.data.row_dataset import RowDataset

Entity = tuple[str, int, int]
"""Type, and numbers of the first and last word."""


class TokenClassification(LabelledTask):
    """Cross-entropy of each word's tag, at the first of its tokens; precision, recall and F1 of entities."""

    model = ModelKind("AutoModelForTokenClassification", "a model for token classification", "BERT")
    formats = ("tokens_tags",)
    peft_type = "TOKEN_CLS"
    counts = "word"

    def with_labels_of(
        self, examples: RowDataset, columns: Columns, known: Sequence[str], where: str
    ) -> TokenClassification:
        names = names_of(examples, columns.tags)
        lists = (tags for tags in examples.column(columns.tags) if isinstance(tags, list))
        found = names or found_labels(chain.from_iterable(lists), columns.tags)
        return replace(self, labels=classes_of(found, known, columns.tags, where), names=names)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        check_maps_words(tokenizer, where=where, hint=FAST.capitalize())

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, columns, self)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        from transformers import DataCollatorForTokenClassification

        return DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=self.pad_to())  # type: ignore[no-any-return]

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        line: list[tuple[str, str]] = []
        for token, label in zip(sequence["input_ids"], sequence["labels"], strict=True):
            if label != IGNORED:
                line.append((f" ⟦{visible(self.labels[label])}⟧", STRONG))
            line.append((visible(tokenizer.decode([token])), ""))
        yield line

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Words, words with the right tag; entities found, that there are, and that are both."""
        sums = [0] * 5
        for labels, found in zip(inputs["labels"], output.logits.argmax(-1), strict=True):
            is_target = labels != IGNORED
            truth = [self.labels[index] for index in labels[is_target].tolist()]
            guess = [self.labels[index] for index in found[is_target].tolist()]
            right = sum(true_tag == other for true_tag, other in zip(truth, guess, strict=True))
            there, said = set(entities(truth)), set(entities(guess))
            sums = [
                total + more
                for total, more in zip(
                    sums, (len(truth), right, len(said), len(there), len(said & there)), strict=True
                )
            ]
        return sums

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """Accuracy over words, and of whole entities precision, recall and F1 (0 where there are none)."""
        words, right, said, there, both = scores
        accuracy = {"accuracy": ratio(right, words)}
        if not any(label[:2] in ("B-", "I-") for label in self.labels):
            return accuracy
        precision, recall = both / said if said else 0.0, both / there if there else 0.0
        f1 = 2 * precision * recall / (precision + recall) if both else 0.0
        return {"precision": precision, "recall": recall, "f1": f1, **accuracy}


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities in a sequence of tags such as ``B-PER``, ``I-PER``, ``O``, also ``S-`` and ``E-``.

    By the rules of conlleval, as in seqeval 1.2.2's default mode (``get_entities``): an entity also begins at
    an ``I-`` after ``O`` or another type, and ends before a word of another type.
    """
    found, start = [], 0
    previous, previous_type = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        prefix, type_ = tag[:1] or "O", tag[1:].split("-", maxsplit=1)[-1] or "_"
        if _ends(previous, prefix, previous_type, type_):
            found.append((previous_type, start, index - 1))
        if _begins(previous, prefix, previous_type, type_):
            start = index
        previous, previous_type = prefix, type_
    return found


def _ends(previous: str, prefix: str, previous_type: str, type_: str) -> bool:
    if previous in "ES":
        return True
    if previous in "BI" and prefix in "BSO":
        return True
    return previous not in "O." and previous_type != type_


def _begins(previous: str, prefix: str, previous_type: str, type_: str) -> bool:
    if prefix in "BS":
        return True
    if previous in "ESO" and prefix in "EI":
        return True
    return prefix not in "O." and previous_type != type_


class _Encoder(LabelEncoder):
    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        words = self._list(example, self.columns.tokens)
        tags = self._list(example, self.columns.tags)
        column = self.columns.tags
        if len(words) != len(tags):
            raise UnusableError(
                f"{len(words)} words in '{self.columns.tokens}', but {len(tags)} tags in '{column}'",
                hint="Give each word its tag",
            )
        for word in words:
            if not isinstance(word, str):
                raise UnusableError(f"'{self.columns.tokens}' has {value_kind(word)} among its words, not text")
        ids = [self.label_id(tag, column) for tag in tags]
        # As a text with a space between words, which is what the model will be given when it is used.
        text = " ".join(words)
        encoded, is_cut = encode_whole(self.tokenizer, text, most=self.seq_len, return_offsets_mapping=True)
        word_at: list[int | None] = []
        for place, word in enumerate(words):
            word_at += [place] * len(word) + [None]
        labels: list[int] = []
        last: int | None = None
        for start, end in encoded["offset_mapping"]:
            number = next((word_at[at] for at in range(start, end) if not text[at].isspace()), None)
            labels.append(IGNORED if number is None or number == last else ids[number])
            last = last if number is None else number
        features = {"input_ids": encoded["input_ids"], "labels": labels}
        return [Encoded(features, is_cut, any(label != IGNORED for label in labels))]

    def _list(self, example: dict[str, Any], column: str) -> list[Any]:
        value = example[column]
        if not isinstance(value, list):
            what = "absent or null" if value is None else value_kind(value)
            raise UnusableError(f"'{column}' is {what}, not a list")
        return value
