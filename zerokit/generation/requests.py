"""What ranks decode, and what comes of it: the words between :mod:`main`, its queues and the decoder."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """A prompt to complete, once or several times."""

    index: int
    """Place of the prompt in the input. With the run's seed and a completion's number it seeds sampling."""
    tokens: Sequence[int]
    """Tokens of the prompt; at least one."""
    num_completions: int = 1


@dataclass(frozen=True)
class Decoded:
    """The completions of a request."""

    index: int
    """Place of the prompt in the input."""
    completions: list[list[int]]
    """New tokens of each completion; what follows an end token is padding."""
    prompt: Sequence[int] = ()
    """Tokens before those of the completions; none for an encoder-decoder model."""


def requests_of(
    tokens: Sequence[Sequence[int]], num_completions: int | None, done: Container[int] = ()
) -> list[Request]:
    """The requests of prompts that have tokens and are not `done`, the longest first."""
    left = [index for index, found in enumerate(tokens) if found and index not in done]
    return [Request(at, tokens[at], num_completions or 1) for at in sorted(left, key=lambda at: -len(tokens[at]))]


def rows_at_once(batch_size: int, max_batch_tokens: int | None, row_tokens: int) -> int:
    """Rows of a batch at most, at least one, whose longest row gets `row_tokens` tokens, new ones included."""
    return batch_size if max_batch_tokens is None else max(1, max_batch_tokens // row_tokens)


class Queue(Protocol):
    """Requests that a rank decodes."""

    def take(self, most: int) -> list[Request]:
        """Return the next requests, at most `most`; none if no more will come for this rank."""
        ...


class OwnRequests:
    """A queue of requests that are all this rank's."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = deque(requests)

    def take(self, most: int) -> list[Request]:
        """Return the next requests, at most `most`."""
        return [self._left.popleft() for _ in range(min(most, len(self._left)))]
