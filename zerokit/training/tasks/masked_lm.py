"""Prediction of masked tokens or words from their context, as in the pre-training of BERT."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import ModelKind
from zerokit.data.encoding import encode_whole, pieces
from zerokit.data.full_disk import report_full_disk
from zerokit.recipe.model import Columns, Format
from zerokit.reporting.tables import StyledLine
from zerokit.training.examples import IGNORED, Encoded, Encoder, text_of
from zerokit.training.preview import marked
from zerokit.training.tasks.task import Collator, Task, ratio
from zerokit.training.tokenizer import FAST, check_maps_words

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


class MaskedLM(Task):
    """Cross-entropy of masked tokens, chosen anew each time; accuracy on held-out data.

    Of the chosen tokens 80 % become the mask, 10 % another token and 10 % stay (Devlin et al. 2018, section
    3.1); chosen words all become the mask, as in transformers' collator.
    """

    model = ModelKind("AutoModelForMaskedLM", "a masked language model", "BERT", new_head=False)
    formats = ("text",)
    peft_type = None
    needs = "mask"

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        if self.section.whole_words:
            check_maps_words(tokenizer, where=where, hint="Set task.whole_words to false, or " + FAST)

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, columns, self)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        return _Masking(tokenizer, self)

    def blank(self) -> dict[str, Any]:
        return {"input_ids": [], "words": []} if self.section.whole_words else {"input_ids": []}

    @report_full_disk()
    def with_fixed_targets(self, held_out: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        masking = _Masking(tokenizer, self)
        return held_out.map(masking.fixed, remove_columns=held_out.column_names, desc="Masking")

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        labels = _Masking(tokenizer, self).fixed(dict(sequence))["labels"]
        return marked(sequence["input_ids"], labels, tokenizer)

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Number of tokens, and of correct ones."""
        labels = inputs["labels"]
        is_target = labels != IGNORED
        right = output.logits[is_target].argmax(-1) == labels[is_target]
        return int(is_target.sum()), int(right.sum())

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The accuracy on masked tokens."""
        return {"accuracy": ratio(scores[1], scores[0])}


class _Encoder(Encoder):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, columns: Columns, task: MaskedLM) -> None:
        self.tokenizer = tokenizer
        self.column = columns.text
        self.seq_len = task.section.seq_len
        self.packed_len = None if task.section.packing is False else self.seq_len
        self.whole_words = task.section.whole_words

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        text, is_cut = text_of(example, self.column), False
        if self.packed_len is None:
            encoded, is_cut = encode_whole(self.tokenizer, text, most=self.seq_len)
            parts = [encoded]
        else:
            parts = [self.tokenizer(piece) for piece in pieces(text)]
        features: dict[str, list[int]] = {"input_ids": [token for part in parts for token in part["input_ids"]]}
        if self.whole_words:
            features["words"] = [-1 if word is None else word for part in parts for word in part.word_ids()]
        special = set(self.tokenizer.all_special_ids)
        return [Encoded(features, is_cut, any(token not in special for token in features["input_ids"]))]


class _Masking:
    """transformers' collator for masked tokens; keeps existing masks of a batch."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: MaskedLM) -> None:
        from transformers import DataCollatorForLanguageModeling, DataCollatorForTokenClassification

        whole = task.section.whole_words
        shares = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if whole else {}
        self.tokenizer = tokenizer
        self.multiple = task.pad_to() or 1
        self.masking = DataCollatorForLanguageModeling(
            tokenizer,
            mlm_probability=task.section.mask_probability,
            whole_word_mask=whole,
            pad_to_multiple_of=task.pad_to(),
            **shares,
        )
        self.padding = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=task.pad_to())

    def __call__(self, features: list[dict[str, Any]]) -> Mapping[str, torch.Tensor]:
        pad = self.tokenizer.pad_token_id
        rows = [{**row, "input_ids": row["input_ids"] or [pad]} for row in features]  # blanks
        if any("labels" in row for row in rows):
            return self.padding(  # type: ignore[no-any-return]
                [{"input_ids": row["input_ids"], "labels": row.get("labels") or [IGNORED]} for row in rows]
            )
        longest = -(-max(len(row["input_ids"]) for row in rows) // self.multiple) * self.multiple
        for row in rows:
            if "words" in row:
                row["offset_mapping"] = self._offsets(row.pop("words"), longest)
        return self.masking(rows)  # type: ignore[no-any-return]

    def _offsets(self, words: list[int], longest: int) -> list[list[int]]:
        """Offsets of tokens in a text with a gap between different words."""
        end, before = 0, None
        offsets = []
        for word in words:
            start = end if word == before else end + 1
            end, before = start + 1, word
            offsets.append([start, end])
        padding = [[0, 0]] * (longest - len(offsets))
        return [*padding, *offsets] if self.tokenizer.padding_side == "left" else [*offsets, *padding]

    def fixed(self, example: dict[str, Any]) -> dict[str, list[int]]:
        """An example with masks that its tokens determine, at least one if possible."""
        import torch

        seed = zlib.crc32(array("q", example["input_ids"]).tobytes())
        size = len(example["input_ids"])
        for attempt in range(100):
            self.masking.generator = torch.Generator().manual_seed(seed + attempt)
            batch = self([example])
            side = slice(-size, None) if self.tokenizer.padding_side == "left" else slice(0, size)
            masked, labels = (batch[name][0, side].tolist() for name in ("input_ids", "labels"))
            if any(label != IGNORED for label in labels):
                break
        self.masking.generator = None
        return {"input_ids": masked, "labels": labels}
