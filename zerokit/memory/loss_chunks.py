"""How a training run of zerokit's cuts its loss: into chunks of tokens, where that takes less memory."""

from __future__ import annotations

CHUNK_LOGITS = 2**27
"""Of a chunk: enough tokens to keep a GPU's matrix units busy, 1,024 at a vocabulary of 128k."""


def chunk_tokens(vocabulary: int) -> int:
    """The tokens of a chunk: a power of two."""
    return 1 << max(0, (CHUNK_LOGITS // vocabulary).bit_length() - 1)


def saves_memory(tokens: int, vocabulary: int, *, hidden: int, trained: bool) -> bool:
    """Whether a loss in chunks takes less memory than all logits at once.

    Args:
        tokens: of a micro-batch.
        vocabulary: V.
        hidden: h, the width of hidden states.
        trained: whether the output matrix is. The sum of its gradients, 4 bytes for each of V·h, then lies
            beside a chunk, of which each of its V logits per token takes 12: in fp32 its log-softmax and the
            gradients of both.
    """
    return 12 * (tokens - chunk_tokens(vocabulary)) > 4 * hidden * trained
