"""Seconds of fused attention: five kinds of work, each with a cost relative to the card's peak."""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK = 128
"""Queries that a thread block processes with all keys (FlashAttention-2, section 3.3)."""

_BACKWARD = 2.5
"""Matmuls of the backward pass per forward matmul (FlashAttention-2, section 3.1.2: five and two)."""


@dataclass(frozen=True)
class Attention:
    """One attention call."""

    batch: float
    """Sequences in a batch; for packed ones see :func:`packed`."""
    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    causal: bool
    window: int | None = None
    """Maximum keys that a query attends to; None: all."""

    @property
    def keys_of_a_query(self) -> int:
        """Maximum."""
        return self.k_len if self.window is None else min(self.k_len, self.window)

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that it attends to; the first queries see less of a window."""
        within_window = float(self.q_len * self.keys_of_a_query)
        if not self.causal:
            return within_window
        # Query i attends to keys 0 to i, and to keys before the first query.
        square = min(self.q_len, self.k_len)
        rest = abs(self.q_len - self.k_len) * square
        return min(square * (square + 1) / 2 + rest, within_window)


def packed(tokens: int, longest: int) -> tuple[float, int]:
    """Packed sequences, as a number of sequences of equal length with the same number of pairs.

    Args:
        longest: tokens of the longest, or an upper bound.

    Returns:
        their number, which may be fractional, and their length.
    """
    length = max(min(longest, tokens), 1)
    return tokens / length, length


def keys_in_window(causal: bool, left: int | None = None, right: int | None = None) -> int | None:
    """Maximum keys that a query attends to, including its own; None: no limit.

    Args:
        causal: no keys to the right.
        left: further keys on the left; None and -1: all, as in flash attention.
        right: the same on the right.
    """
    right = 0 if causal else right
    return None if left is None or right is None or min(left, right) < 0 else left + 1 + right


@dataclass(frozen=True)
class AttentionCurve:
    """Cost of each kind of work relative to the card's peak, in the order of :meth:`terms`."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @staticmethod
    def terms() -> tuple[str, ...]:
        return ("products", "scores", "rows", "diagonal", "one_block")

    def peak_flops(self, call: Attention, backward: bool, multiprocessors: int | None) -> float:
        """Operations that the card would do at its peak during the call."""
        costs = self.backward if backward else self.forward
        work = attention_work(call, backward, multiprocessors)
        return sum(cost * one for cost, one in zip(costs, work, strict=True))


def attention_work(call: Attention, backward: bool, multiprocessors: int | None) -> tuple[float, ...]:
    """Floating-point operations of each kind; a card with unknown multiprocessors counts as one.

    Returns:
        the two (backward: five) matmuls; exponentials of the scores, as many as for heads of 64; start and
            end of a block per row; the masked half of diagonal blocks in causal attention; the last block,
            which one multiprocessor computes alone.
    """
    times = _BACKWARD if backward else 1.0
    all_heads = call.batch * call.heads
    rows = 4.0 * all_heads * call.q_len * _BLOCK * call.head_dim * times
    return (
        4.0 * all_heads * call.pairs * call.head_dim * times,
        4.0 * all_heads * call.pairs * 64 * times,
        rows,
        rows if call.causal else 0.0,
        4.0 * _BLOCK * call.keys_of_a_query * call.head_dim * times * (multiprocessors or 1),
    )
