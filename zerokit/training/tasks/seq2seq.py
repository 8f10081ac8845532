"""Answers of models with an encoder and a decoder: translations, summaries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import SEQ2SEQ
from zerokit.data.encoding import encode_whole
from zerokit.errors import ModelError, RecipeError, visible
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import Columns, Format
from zerokit.reporting.tables import StyledLine
from zerokit.training.examples import IGNORED, Encoded, Encoder, text_of, text_or_none
from zerokit.training.preview import marked
from zerokit.training.tasks.generated import answer_metrics, compare, texts_of
from zerokit.training.tasks.task import Collator, Task, uses_router_loss

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


class Seq2Seq(Task):
    """Cross-entropy of the answer's tokens; of generated answers, how many are right, and ROUGE-L."""

    model = SEQ2SEQ
    formats = ("prompt_completion", "alpaca")
    peft_type = "SEQ_2_SEQ_LM"
    generates = True

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, format_, columns, self)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        if getattr(tokenizer, "tgt_lang", "") is None:
            raise ModelError(
                "the tokenizer writes a language into each text, and the language of the answers is not set",
                where=where,
                hint="Save it with src_lang and tgt_lang set, and name its folder in model.tokenizer",
            )

    def for_model(self, config: PretrainedConfig, loaded: LoadedRecipe) -> Seq2Seq:
        if not config.is_encoder_decoder:
            raise ModelError(
                f"'{config.model_type}' is not an encoder-decoder model",
                where=loaded.where("model", "path"),
                hint="Choose a model such as T5, or another task.type",
            )
        decoder = getattr(config, "num_decoder_layers", None)
        layers = getattr(config, "num_hidden_layers", decoder)  # T5 counts those of its encoder there
        if self.section.generates_answers and decoder is not None and decoder > layers:
            raise RecipeError(
                f"the model has {decoder} layers in its decoder and {layers} in its encoder, for which "
                "generate() of transformers fails",
                where=loaded.where("task", "predict_with_generate"),
                hint="Set task.predict_with_generate to false",
            )
        return replace(self, has_router_loss=uses_router_loss(config))

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = tokenizer.pad_token_id  # as T5 begins

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        return _Batch(tokenizer, model, self.pad_to())

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        for line in tokenizer.decode(sequence["input_ids"]).split("\n"):
            yield [(visible(line), "")]
        yield from marked(sequence["labels"], sequence["labels"], tokenizer)

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Answers, those that are right, and the sum of their ROUGE-L."""
        if not self.section.generates_answers:
            return ()
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
        return compare(*(texts_of(tokenizer, rows) for rows in (generated[is_example], wanted)))

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The share of answers that are right to the letter, and the mean ROUGE-L."""
        return answer_metrics(scores)


class _Encoder(Encoder):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns, task: Seq2Seq) -> None:
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


class _Batch:
    """Pads sources and answers, and makes the decoder's tokens.

    Only a model with a router loss gets labels; others would compute a loss that is not used. So the
    decoder's tokens are made here: by the model's own method if it has one, else as in forward() of other
    models.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: Any, multiple: int | None) -> None:
        from transformers import DataCollatorWithPadding

        self.model = model
        self.multiple = multiple or 1
        self.end, self.padding = tokenizer.eos_token_id, tokenizer.pad_token_id
        to = math.lcm(self.multiple, _own_padding(model.config))
        self.sources = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=to)

    def __call__(self, rows: list[dict[str, Any]]) -> Mapping[str, torch.Tensor]:
        import torch

        answers = [row["labels"] for row in rows]
        longest = math.ceil(max(map(len, answers)) / self.multiple) * self.multiple
        # Behind the answer wherever sources are padded: the decoder begins with its first token.
        labels = torch.tensor([[*answer, *[IGNORED] * (longest - len(answer))] for answer in answers])
        shown = labels.clone()  # FSMT writes into what it is shown
        shown[(labels == IGNORED).all(-1), 0] = self.end  # a blank: mBART begins with an answer's last token
        sources = self.sources([{"input_ids": row["input_ids"]} for row in rows])
        return {**sources, "labels": labels, "decoder_input_ids": self._shifted(shown)}

    def _shifted(self, shown: torch.Tensor) -> torch.Tensor:
        prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            return prepare(labels=shown)  # type: ignore[no-any-return]
        shifted = shown.masked_fill(shown == IGNORED, self.padding).roll(1, dims=-1)
        shifted[:, 0] = self.model.config.decoder_start_token_id
        return shifted


def _own_padding(config: PretrainedConfig) -> int:
    """The multiple to which a model pads sources itself, at which ranks could differ."""
    windows = getattr(config, "attention_window", 1)  # LED's
    window: int = windows if isinstance(windows, int) else max(windows)
    return window * (config.block_size if getattr(config, "attention_type", "") == "block_sparse" else 1)
