"""Generated answers, compared with those of held-out examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from zerokit.generation.api import complete_tokens
from zerokit.training.examples import IGNORED
from zerokit.training.packing import document_starts
from zerokit.training.tasks.task import ratio

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


def generated_scores(
    inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase, target_len: int
) -> tuple[int, int, float]:
    """The :func:`compare` of greedy answers to the prompts of a batch, of a model that predicts the next token."""
    asked = list(questions(inputs))
    said = complete_tokens(model, tokenizer, [prompt for prompt, _ in asked], max_new_tokens=target_len)
    return compare(said, texts_of(tokenizer, [answer for _, answer in asked]))


def questions(inputs: Mapping[str, torch.Tensor]) -> Iterator[tuple[list[int], list[int]]]:
    """Of each document of a batch the tokens before its first answer, and those of the answer."""
    places = inputs.get("position_ids")
    rows = zip(*(inputs[name].tolist() for name in ("input_ids", "labels", "attention_mask")), strict=True)
    for number, row in enumerate(rows):
        starts = [0] if places is None else document_starts(places[number].tolist())
        for start, end in pairwise([*starts, len(row[0])]):
            parts = (part[start:end] for part in row)
            tokens = [(token, label) for token, label, is_token in zip(*parts, strict=True) if is_token]
            first = next((at for at, (_, label) in enumerate(tokens) if label != IGNORED), 0)
            if first:
                answer = takewhile(lambda pair: pair[1] != IGNORED, tokens[first:])
                yield [token for token, _ in tokens[:first]], [label for _, label in answer]


def texts_of(tokenizer: PreTrainedTokenizerBase, rows: Iterable[Any]) -> list[str]:
    """The texts of rows of tokens, without special tokens."""
    # One by one: batch_decode() makes a text of none, and a rank may have blanks alone.
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def compare(said: Sequence[str], wanted: Sequence[str]) -> tuple[int, int, float]:
    """Number of generated answers, of those that are right, and the sum of their ROUGE-L."""
    pairs = [(ours.strip(), theirs.strip()) for ours, theirs in zip(said, wanted, strict=True)]
    return len(pairs), sum(ours == theirs for ours, theirs in pairs), sum(rouge_l(*pair) for pair in pairs)


def answer_metrics(scores: Sequence[float]) -> dict[str, float]:
    """The share of answers that are right to the letter, and the mean ROUGE-L, of the sums of :func:`compare`."""
    if not scores:
        return {}
    answers, right, rouge = scores
    return {"exact_match": ratio(right, answers), "rouge_l": ratio(rouge, answers)}


def rouge_l(said: str, wanted: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1), as in rouge_score 0.1.2.

    Words consist of letters and digits of any script (in rouge_score: of ASCII). In scripts without spaces a
    word is as long as a sentence.
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
