"""An answer to a text by a model with an encoder and a decoder: translations, summaries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import ModelKind
from zerokit.data.encoding import encode_whole
from zerokit.errors import ModelError, visible
from zerokit.training.examples import IGNORED, Encoded, Encoder, text_of, text_or_none
from zerokit.training.preview import marked
from zerokit.training.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.recipe.model import Columns, Format
    from zerokit.reporting.tables import StyledLine
    from zerokit.training.tasks.task import Collator


class Seq2Seq(Task):
    """Cross-entropy of the answer's tokens; of generated answers, how many are right, and ROUGE-L."""

    model = ModelKind("AutoModelForSeq2SeqLM", "a sequence-to-sequence model", "T5", new_head=False)
    formats = ("prompt_completion", "alpaca")
    peft_type = "SEQ_2_SEQ_LM"
    generates = True

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, format_, columns, self)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        if getattr(tokenizer, "tgt_lang", "") is None:
            raise ModelError(
                "the tokenizer writes a language into each text, and nobody has said which answers are in",
                where=where,
                hint="Save it with src_lang and tgt_lang set, and name its folder in model.tokenizer",
            )

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = tokenizer.pad_token_id  # as T5 begins

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        from transformers import DataCollatorForSeq2Seq

        # The model makes of labels what its decoder is given.
        return DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=self.pad_to())  # type: ignore[no-any-return]

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        for line in tokenizer.decode(sequence["input_ids"]).split("\n"):
            yield [(visible(line), "")]
        yield from marked(sequence["labels"], sequence["labels"], tokenizer)

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Answers, those that are right, and the sum of their ROUGE-L."""
        if not self.section.predict_with_generate:
            return ()
        # Under ZeRO-3 transformers has every rank go on until the last one is done (synced_gpus).
        generated = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=self.section.target_len,
            do_sample=False,
            num_beams=1,
        )
        labels = inputs["labels"]
        is_example = (labels != IGNORED).any(-1)
        wanted = labels.masked_fill(labels == IGNORED, tokenizer.pad_token_id)[is_example]
        texts = [
            [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
            for ids in (generated[is_example], wanted)
        ]
        pairs = list(zip(*texts, strict=True))
        return len(pairs), sum(said == right for said, right in pairs), sum(rouge_l(*pair) for pair in pairs)

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The share of answers that are right to the letter, and the mean ROUGE-L."""
        if not scores:
            return {}
        answers, right, rouge = scores
        return {"exact_match": right / answers, "rouge_l": rouge / answers}


def rouge_l(said: str, wanted: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1), as rouge_score 0.1.2 has it.

    Words are of letters and digits of any script, where rouge_score knows those of ASCII alone. Scripts
    without spaces have few of them, as long as their sentences.

    Args:
        said: what was generated.
        wanted: the reference.
    """
    ours, theirs = (re.findall(r"[^\W_]+", text.lower()) for text in (said, wanted))
    if not ours or not theirs:
        return 0.0
    row = [0] * (len(theirs) + 1)
    for word in ours:
        before, row = row, [0]
        for index, other in enumerate(theirs):
            row.append(before[index] + 1 if word == other else max(before[index + 1], row[-1]))
    return 2 * row[-1] / (len(ours) + len(theirs))


class _Encoder(Encoder):
    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns, task: Seq2Seq
    ) -> None:
        self.tokenizer = tokenizer
        self.format = format_
        self.columns = columns
        self.seq_len = task.section.seq_len
        self.target_len = task.section.target_len

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        names = self.columns
        if self.format == "alpaca":
            source, target = text_of(example, names.instruction), text_of(example, names.output)
            if given := text_or_none(example, names.input):
                source = f"{source}\n\n{given}"
        else:
            source, target = text_of(example, names.prompt), text_of(example, names.completion)
        asked, is_cut = encode_whole(self.tokenizer, source, most=self.seq_len)
        answer, answer_is_cut = encode_whole(self.tokenizer, target, most=self.target_len, is_target=True)
        labels, end = list(answer["input_ids"]), self.tokenizer.eos_token_id
        if end not in labels[-2:]:  # without it nobody would stop; mBART has the language behind it
            answer_is_cut = answer_is_cut or len(labels) == self.target_len
            labels = [*labels[: self.target_len - 1], end]
        input_ids = asked["input_ids"] or [end]
        return [Encoded({"input_ids": input_ids, "labels": labels}, is_cut or answer_is_cut)]
