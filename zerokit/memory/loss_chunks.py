"""When and how a run of zerokit computes its loss in chunks of tokens."""

from __future__ import annotations

CHUNK_LOGITS = 2**27
"""Logits per chunk: enough tokens to keep a GPU busy, 1,024 at a vocabulary of 128k."""


def chunk_tokens(vocabulary: int) -> int:
    """Tokens per chunk: a power of two."""
    return 1 << max(0, (CHUNK_LOGITS // vocabulary).bit_length() - 1)


def saves_memory(tokens: int, vocabulary: int, *, hidden: int, trained: bool) -> bool:
    """Whether a loss in chunks takes less memory than all logits at once.

    A chunk takes 12 bytes per logit: its fp32 log-softmax and both gradients. If the output matrix is
    trained, the sum of its gradients takes 4 bytes for each of V·h elements.

    Args:
        tokens: of a micro-batch.
        vocabulary: V.
        hidden: h, the hidden size.
        trained: whether the output matrix is trained.
    """
    return 12 * (tokens - chunk_tokens(vocabulary)) > 4 * hidden * trained
