"""From the tokens that the model made to a completion: where it ends, why, and its text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Completion:
    """What the model wrote after a prompt."""

    text: str
    """Without special tokens, and without the stop string that ended it."""
    num_tokens: int
    """Tokens generated, the one that ended it included."""
    finish_reason: str
    """``stop`` at an end token or a stop string, else ``length``."""

    def fields(self) -> dict[str, Any]:
        """Its part of a record."""
        return {
            "completion": self.text,
            "num_completion_tokens": self.num_tokens,
            "finish_reason": self.finish_reason,
        }


class Finisher:
    """Cuts generated tokens where the completion ends.

    Args:
        tokenizer: turns tokens into text.
        end_tokens: tokens that end a completion.
        stop_strings: strings that end a completion.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int], stop_strings: Sequence[str]
    ) -> None:
        # A special token is not in the text, so as a stop string it is looked for among the tokens.
        special = tokenizer.get_added_vocab()
        self.tokenizer = tokenizer
        self.end_tokens = end_tokens | {special[stop] for stop in stop_strings if stop in special}
        self.stop_strings = [stop for stop in stop_strings if stop not in special]

    def __call__(self, tokens: Sequence[int]) -> Completion:
        """The completion that `tokens` begin with; what follows its end is padding."""
        end = next((at for at, token in enumerate(tokens) if token in self.end_tokens), None)
        body = tokens if end is None else tokens[:end]
        text = self._decode(body)
        cut = self._first_stop(text)
        if cut is not None:
            return Completion(text[:cut], self._tokens_until_stop(body), "stop")
        if end is not None:
            return Completion(text, end + 1, "stop")
        return Completion(text, len(tokens), "length")

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _first_stop(self, text: str) -> int | None:
        found = [text.find(stop) for stop in self.stop_strings]
        return min((at for at in found if at >= 0), default=None)

    def _tokens_until_stop(self, tokens: Sequence[int]) -> int:
        """How many tokens it took until a stop string was complete."""
        return bisect_left(
            range(len(tokens)),
            True,
            key=lambda count: self._first_stop(self._decode(tokens[:count])) is not None,
        )
