"""Direct preference optimization: prefers the better of two answers, relative to the untrained model.

The log probabilities of the untrained model are computed once, before the first step and before a checkpoint
is loaded (with the adapter switched off). So there is no second model in memory in any ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.recipe.model import Columns, Format, TaskSection
from zerokit.reporting.tables import STRONG, StyledLine
from zerokit.training.examples import IGNORED, Encoded, Encoder, UnusableError, text_of
from zerokit.training.preview import marked
from zerokit.training.tasks.answers import AnswerEncoder, joined
from zerokit.training.tasks.task import Collator, Task, ratio

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


class DPO(Task):
    """The loss of Rafailov et al. 2023, equation 7; how often and by how much the better answer wins."""

    formats = ("preference",)
    peft_type = "CAUSAL_LM"
    generates = True
    sequences_per_example = 2
    counts = "pair"
    needs_reference = True

    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        return _Encoder(tokenizer, columns, self.section)

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        return _Pairs(tokenizer, self.pad_to())

    def blank(self) -> dict[str, Any]:
        nothing = {"input_ids": [0], "labels": [IGNORED]}
        return {**nothing, **{f"rejected_{name}": value for name, value in nothing.items()}}

    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        for name, prefix in (("chosen", ""), ("rejected", "rejected_")):
            yield [(f"{name}:", STRONG)]
            yield from marked(sequence[f"{prefix}input_ids"], sequence[f"{prefix}labels"], tokenizer)

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["shift_labels"]

    def log_probabilities(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Sum over the tokens of each answer: (pairs, 2), the chosen one first."""
        from zerokit.training.chunked_loss import row_sums

        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return row_sums(model, given, inputs["labels"]).view(2, -1).T

    def loss(self, model: Any, inputs: Mapping[str, torch.Tensor], smoothing: float = 0.0) -> tuple[torch.Tensor, Any]:
        """The sum of the losses of the pairs, and the rewards: (pairs, 2).

        -log sigmoid of the difference of the rewards, each beta times the log probability of an answer less
        the reference's. With `smoothing` e, the share of wrongly labelled pairs (conservative DPO, Mitchell
        2023): (1 - e) of that and e of the opposite.
        """
        from torch.nn.functional import logsigmoid

        rewards = self.section.beta * (self.log_probabilities(model, inputs) - inputs["reference"])
        margin = (rewards[:, 0] - rewards[:, 1])[inputs["shift_labels"] != IGNORED]
        losses = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        # All of them take part in the graph, which a batch of blanks alone must have, too.
        return losses.sum() + 0 * rewards.sum(), rewards

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Number of pairs, of pairs with more reward for the chosen answer, and sums of the rewards."""
        rewards = output[inputs["shift_labels"] != IGNORED].double()
        wins = int((rewards[:, 0] > rewards[:, 1]).sum())
        return len(rewards), wins, float(rewards[:, 0].sum()), float(rewards[:, 1].sum())

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """How often the chosen answer has more reward, by how much on average, and the mean rewards."""
        pairs, wins, chosen, rejected = scores
        return {
            "reward_accuracy": ratio(wins, pairs),
            "reward_margin": ratio(chosen - rejected, pairs),
            "reward_chosen": ratio(chosen, pairs),
            "reward_rejected": ratio(rejected, pairs),
        }


class _Encoder(Encoder):
    """Encodes a prompt with two answers: strings, or chats that differ in the last turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, columns: Columns, section: TaskSection) -> None:
        self.columns = columns
        self.answers = AnswerEncoder(tokenizer, "preference", columns, section)
        self.same = f"'{columns.chosen}' and '{columns.rejected}' are the same"
        self.same_if_cut = f"{self.same} within {section.seq_len} tokens (task.seq_len)"

    def sequences(self, example: dict[str, Any]) -> list[Encoded]:
        chosen, rejected = (self._answer(example, column) for column in (self.columns.chosen, self.columns.rejected))
        features = {**chosen.features, **{f"rejected_{name}": value for name, value in rejected.features.items()}}
        is_cut = chosen.is_cut or rejected.is_cut
        has_targets = chosen.has_targets and rejected.has_targets
        # Of the same answers, the difference of the rewards and its gradient would always be 0.
        if has_targets and chosen.features == rejected.features:
            return [Encoded(features, is_cut, False, self.same_if_cut if is_cut else self.same)]
        joins = chosen.joins_prompt or rejected.joins_prompt
        return [Encoded(features, is_cut, has_targets, joins_prompt=joins)]

    def _answer(self, example: dict[str, Any], column: str) -> Encoded:
        answer, prompt = example[column], example.get(self.columns.prompt)
        if not isinstance(answer, list):
            if isinstance(prompt, list):
                raise UnusableError(
                    f"'{self.columns.prompt}' is a chat and '{column}' is not",
                    hint="Give both as text, or both as lists of messages",
                )
            return self.answers.completion(text_of(example, self.columns.prompt), text_of(example, column))
        return self.answers.last_turn(joined(prompt, answer, self.columns.prompt)[0])


class _Pairs:
    """All chosen sequences and then all rejected ones, padded to one length."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pad_to: int | None) -> None:
        from transformers import DataCollatorForSeq2Seq

        self.padding = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=pad_to)

    def __call__(self, pairs: list[dict[str, Any]]) -> Mapping[str, torch.Tensor]:
        import torch

        rows = [
            {name: pair[f"{prefix}{name}"] for name in ("input_ids", "labels")}
            for prefix in ("", "rejected_")
            for pair in pairs
        ]
        batch: dict[str, torch.Tensor] = dict(self.padding(rows))
        is_blank = (batch["labels"] == IGNORED).all(-1)[: len(pairs)]
        # By these the Trainer counts what a step has: pairs.
        batch["shift_labels"] = torch.where(is_blank, IGNORED, 0)
        if "reference" in pairs[0]:
            batch["reference"] = torch.tensor([pair["reference"] for pair in pairs])
        return batch
