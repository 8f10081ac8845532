"""Next-token prediction: on texts, from scratch or continued, and on the answers of completions and chats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zerokit.training.examples import IGNORED
from zerokit.training.preview import marked
from zerokit.training.tasks.answers import AnswerEncoder
from zerokit.training.tasks.task import Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from zerokit.recipe.model import Columns, Format
    from zerokit.reporting.tables import StyledLine
    from zerokit.training.tasks.task import Collator


class CausalLM(Task):
    """The loss is the model's own, the mean over the tokens that are trained on."""

    # In this order: Alpaca's own file has a column of whole texts too.
    formats = ("messages", "sharegpt", "prompt_completion", "alpaca", "text")
    peft_type = "CAUSAL_LM"
    generates = True
    has_own_loss = False

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> AnswerEncoder:
        return AnswerEncoder(tokenizer, format_, columns, self.section)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        from transformers import DataCollatorForSeq2Seq

        # Pads input_ids with the pad token and labels with -100.
        return DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=self.pad_to())  # type: ignore[no-any-return]

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        return marked(sequence["input_ids"], sequence["labels"], tokenizer)

    def num_targets(self, inputs: Mapping[str, torch.Tensor]) -> int:
        return int((inputs["labels"][..., 1:] != IGNORED).sum())

    def loss(
        self, model: Any, inputs: Mapping[str, torch.Tensor], smoothing: float = 0.0
    ) -> tuple[torch.Tensor, Any]:
        output = model(**inputs)
        targets = self.num_targets(inputs)
        # The mean over the tokens of a batch of blanks is not a number.
        return (output.loss.double() * targets if targets else output.loss.new_zeros(())), output
