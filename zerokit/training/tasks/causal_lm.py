"""Next-token prediction on texts, and on the answers of completions and chats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zerokit.errors import RecipeError
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import Columns, Format
from zerokit.reporting.tables import STRONG, StyledLine
from zerokit.training.examples import IGNORED
from zerokit.training.model import class_of
from zerokit.training.packing import Layout, document_starts, packing_unsupported_reason, row_length, rows_for
from zerokit.training.peft.keys import method_of
from zerokit.training.preview import marked
from zerokit.training.sequence_parallel import check_model
from zerokit.training.tasks.answers import AnswerEncoder
from zerokit.training.tasks.generated import answer_metrics, generated_scores
from zerokit.training.tasks.task import Collator, Task, ratio, sum_from_mean, uses_router_loss

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class CausalLM(Task):
    """The loss is the model's own, the mean over the tokens that are trained on."""

    mixed: str | None = None
    """Why documents in one row would see each other; None if the model keeps them apart."""
    one_row: bool = False
    """Whether it does so only if a micro batch is one row, as flash attention, which needs no padding."""
    parts: int = 1
    """Ranks that share the tokens of each row, which is one for each micro batch (sequence parallelism)."""
    measures_accuracy: bool = False
    """Whether an evaluation counts the tokens that the model predicts, for which it needs all logits."""

    # In this order: Alpaca's own file has a column of whole texts too.
    formats = ("messages", "sharegpt", "prompt_completion", "alpaca", "text")
    peft_type = "CAUSAL_LM"
    generates = True

    def for_model(self, config: PretrainedConfig, loaded: LoadedRecipe) -> CausalLM:
        model = class_of(config, loaded.recipe.model, self.model)
        asked = loaded.recipe.model.attn_implementation or getattr(config, "_attn_implementation", None)
        parts = loaded.recipe.parallel.sequence
        one_row = "flash" in (asked or "") or parts > 1
        mixed = packing_unsupported_reason(model, config, asked, self.section.seq_len, one_row=one_row)
        method = method_of(loaded)
        learned = method and method.tokens and "learned tokens stand before the first one alone"
        mixed = learned or mixed
        if parts > 1:
            check_model(model, config, mixed, loaded)
        for key in ("packing", "padding_free"):
            if mixed and getattr(self.section, key):
                raise RecipeError(
                    f"documents in one row would see each other in {config.model_type}: {mixed}",
                    where=loaded.where("task", key),
                    hint="Remove it, or set it to false",
                )
        section = self.section
        if learned is not None and section.packing is None:  # a text each, with the learned tokens before it
            section = section.model_copy(update={"packing": False})
        has_router_loss = uses_router_loss(config)
        return replace(
            self, section=section, mixed=mixed, one_row=one_row, parts=parts, has_router_loss=has_router_loss
        )

    def layout(self, batch_size: int, step_size: int) -> Layout | None:
        if self.section.padding_free is False:
            return None
        in_rows = self.mixed is None
        capacity, multiple = self._room() if in_rows else (self.section.seq_len, self.pad_to() or 1)
        return Layout(batch_size, step_size, capacity, multiple, in_rows=in_rows)

    def _room(self) -> tuple[int | None, int]:
        """Most tokens of a row that documents share (None: all), and a divisor of its length."""
        return (None, self.parts) if self.one_row else (self.section.seq_len, self.pad_to() or 1)

    def layout_words(self, padding: str, *, packed: bool) -> str:
        key = "packing" if packed and self.mixed is None else "padding_free"
        off = f"(task.{key}: false switches it off)"
        if self.mixed is not None:
            return f"batches of similar lengths: {padding} {off}; not padding-free: {self.mixed}"
        return f"{'packed documents' if packed else 'padding-free batches'}: {padding} {off}"

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> AnswerEncoder:
        if self.section.generates_answers and (format_ == "text" or self.section.loss_on == "all"):
            raise RecipeError(
                "there are no answers to generate: every token is trained on",
                where="task.predict_with_generate",
                hint="Remove it, or use data with prompts and completions, and without loss_on",
            )
        return AnswerEncoder(tokenizer, format_, columns, self.section, apart=self.mixed is None)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        if self.mixed is None:
            shares = self.section.padding_free is not False
            return PackedCollator(tokenizer.pad_token_id, *self._room(), shares=shares)
        from transformers import DataCollatorForSeq2Seq

        # Pads input_ids with the pad token and labels with -100.
        return DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=self.pad_to())  # type: ignore[no-any-return]

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        input_ids, labels = sequence["input_ids"], sequence["labels"]
        starts = document_starts(sequence.get("position_ids") or range(len(input_ids)))
        for number, (start, end) in enumerate(pairwise([*starts, len(input_ids)]), start=1):
            if len(starts) > 1:
                yield [(f"Document {number} of the sequence:", STRONG)]
            yield from marked(input_ids[start:end], labels[start:end], tokenizer)

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["labels"][..., 1:]

    def at_targets(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if logits.shape[1] >= labels.shape[1]:  # not a part of a row, which has the next part's first label
            logits = logits[:, -labels.shape[1] : -1]  # after learned tokens
        return super().at_targets(logits, labels[:, 1:])

    def model_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if "position_ids" not in inputs:
            labels = inputs["labels"].clone()
            labels[..., 0] = IGNORED  # predicted from virtual tokens; not counted
            return {**inputs, "labels": labels}
        # With a mask of padding, or with a cache, transformers looks for no documents in a row.
        given = {name: value for name, value in inputs.items() if name != "attention_mask"}
        if self.parts > 1:
            given["labels"] = given["shift_labels"] = given["labels"][..., 1:].contiguous()
        return {**given, "use_cache": False}

    def loss(self, model: Any, inputs: Mapping[str, torch.Tensor], smoothing: float = 0.0) -> tuple[torch.Tensor, Any]:
        """The model's own loss, counted once for each token that is trained on, and the model's output.

        The model does not get `num_items_in_batch`: it would divide only the token loss by it, and add its
        router loss (or z-loss) in full for each micro batch of each rank.
        """
        if smoothing:
            return super().loss(model, inputs, smoothing)
        output = model(**self.model_inputs(inputs))
        return sum_from_mean(output.loss, self.num_targets(inputs)), output

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Number of tokens, and of correct ones; then those of generated answers."""
        scores: tuple[float, ...] = ()
        if self.measures_accuracy:
            logits, labels = self.at_targets(output.logits, inputs["labels"])
            scores = len(labels), int((logits.argmax(-1) == labels).sum())
        if self.section.generates_answers:
            scores += generated_scores(inputs, model, tokenizer, self.section.target_len)
        return scores

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The share of tokens that are predicted, and metrics of generated answers."""
        found = {"token_accuracy": ratio(scores[1], scores[0])} if self.measures_accuracy else {}
        return found | answer_metrics(scores[len(found) * 2 :])


_COLUMNS = ("input_ids", "labels", "position_ids", "attention_mask")


@dataclass(frozen=True)
class PackedCollator:
    """A collator that packs the examples of a micro batch into few rows, with positions that restart at 0.

    Returns ``input_ids``, ``labels`` and ``position_ids``, and an ``attention_mask`` to count tokens: (rows,
    tokens) each. Models must not get the mask: with it, transformers ignores documents in a row. Padding is
    at the end of a row.
    """

    pad_token_id: int
    capacity: int | None
    """Most tokens of a row; None puts all examples into one."""
    multiple: int
    """Divisor of the length of a row."""
    shares: bool
    """Whether a row may have several examples."""

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        import numpy  # reads lists ten times faster than torch.tensor does
        import torch

        lengths = [len(feature["input_ids"]) for feature in features]
        rows = [[index] for index in range(len(features))]
        if self.shares or self.capacity is None:
            rows = rows_for(lengths, self.capacity)
        width = row_length(max(sum(lengths[index] for index in row) for row in rows), self.multiple)
        shape = (len(rows), width)
        empty = (self.pad_token_id, IGNORED, 0, 0)
        made = {name: numpy.full(shape, value, dtype=numpy.int64) for name, value in zip(_COLUMNS, empty, strict=True)}
        for number, row in enumerate(rows):
            ids, labels, positions, mask = (made[name][number] for name in _COLUMNS)
            end = 0
            for index in row:
                example, start, end = features[index], end, end + lengths[index]
                ids[start:end] = example["input_ids"]
                labels[start + 1 : end] = example["labels"][1:]  # what comes before it is another document
                positions[start:end] = example.get("position_ids") or numpy.arange(lengths[index])
            positions[end:] = positions[end - 1] + 1 + numpy.arange(width - end)
            mask[:end] = 1
        return {name: torch.from_numpy(values) for name, values in made.items()}
