"""Seconds of fused attention: five kinds of work, each at a multiple of the time at the peak."""

from __future__ import annotations

from dataclasses import dataclass

_BLOCK = 128
"""Queries that one block of threads goes through the keys with (FlashAttention-2, section 3.3)."""

_BACKWARD = 2.5
"""Products of the backward pass by those of the forward (FlashAttention-2, section 3.1.2: five and two)."""


@dataclass(frozen=True)
class Attention:
    """One call."""

    batch: float
    """Of sequences that lie one after the other: see :func:`packed`."""
    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    causal: bool
    window: int | None = None
    """Keys that a query sees at most; None: all."""

    @property
    def keys_of_a_query(self) -> int:
        """At most."""
        return self.k_len if self.window is None else min(self.k_len, self.window)

    @property
    def pairs(self) -> float:
        """Of a query with a key that it sees, at the most: the first queries see less of a window."""
        within_window = float(self.q_len * self.keys_of_a_query)
        if not self.causal:
            return within_window
        # Query i sees keys 0 to i, and the keys before the first query besides.
        square = min(self.q_len, self.k_len)
        rest = abs(self.q_len - self.k_len) * square
        return min(square * (square + 1) / 2 + rest, within_window)


def packed(tokens: int, longest: int) -> tuple[float, int]:
    """Sequences one after the other, as so many of equal length: no others have as many pairs.

    Args:
        tokens: of all of them.
        longest: tokens of the longest, or a bound of them.

    Returns:
        how many, not always a whole number, and their length.
    """
    length = max(min(longest, tokens), 1)
    return tokens / length, length


def keys_in_window(causal: bool, left: int | None = None, right: int | None = None) -> int | None:
    """Keys that a query sees at most, its own among them; None: no bound.

    Args:
        causal: none to its right.
        left: and further ones on its left; None and -1: all, as flash attention has it.
        right: likewise.
    """
    right = 0 if causal else right
    return None if left is None or right is None or min(left, right) < 0 else left + 1 + right


@dataclass(frozen=True)
class AttentionCurve:
    """What each kind of work costs in multiples of its floating-point operations at the card's peak.

    In the order of :meth:`terms`, which is that of :func:`attention_work`.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @staticmethod
    def terms() -> tuple[str, ...]:
        """The kinds of work."""
        return ("products", "scores", "rows", "diagonal", "one_block")

    def peak_flops(self, call: Attention, backward: bool, multiprocessors: int | None) -> float:
        """Operations that the card would do at its peak in the time of the call."""
        costs = self.backward if backward else self.forward
        work = attention_work(call, backward, multiprocessors)
        return sum(cost * one for cost, one in zip(costs, work, strict=True))


def attention_work(call: Attention, backward: bool, multiprocessors: int | None) -> tuple[float, ...]:
    """Floating-point operations of each kind; a card whose multiprocessors are not known counts as one.

    Returns:
        the two (backward: five) products; as many with heads of 64 for the exponentials of each score; a
        block's start and end for each row; the half of each block on the diagonal that causal attention
        computes in vain; the last block, which one multiprocessor does while the others wait.
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
