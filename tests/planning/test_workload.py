"""Padding of micro batches, and the slowest rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.errors import ConfigError
from zerokit.planning.workload import Workload

LENGTHS = {10: 50, 100: 40, 1000: 10}


def _workload(lengths: dict[int, int] | None = None, **changed: object) -> Workload:
    sizes = {"num_sequences": 1000, "seq_len": 1024, "global_batch_size": 32} | changed
    return Workload(lengths=lengths, **sizes)  # type: ignore[arg-type]


def test_full_sequences_have_no_padding() -> None:
    assert _workload().tokens_per_sequence(4, 8) == 1024
    assert _workload({512: 7}).tokens_per_sequence(4, 8) == 512
    assert _workload(epochs=2.0).tokens == 2 * 1000 * 1024


@examples(25)
@given(
    st.dictionaries(st.integers(8, 1024), st.integers(1, 50), min_size=2, max_size=8),
    st.sampled_from([(1, 1), (1, 8), (4, 2), (32, 1)]),
    st.booleans(),
)
def test_the_mean_is_between_the_mean_length_and_the_longest(
    lengths: dict[int, int], sizes: tuple[int, int], padding_free: bool
) -> None:
    workload = _workload(lengths, padding_free=padding_free)
    found = workload.tokens_per_sequence(*sizes)
    assert found <= -(-max(lengths) // 8) * 8
    assert found == workload.tokens_per_sequence(*sizes)
    assert found >= workload.tokens_per_sequence(sizes[0]) - 1e-9  # of one rank


def test_padded_batches_are_as_long_as_their_longest_sequence() -> None:
    """One micro batch of the whole step: the expectation of the maximum of 32 independent lengths."""
    found = _workload(LENGTHS, padding_free=False).tokens_per_sequence(32)
    longest, below = 0.0, 0.0
    for length, count in LENGTHS.items():
        share = below + count / 100
        longest += -(-length // 8) * 8 * (share**32 - below**32)
        below = share
    assert found == pytest.approx(longest, rel=0.05)
    assert _workload(LENGTHS).tokens_per_sequence(32) < 0.3 * found  # several in a row


@pytest.mark.parametrize("lengths", [{0: 1}, {2000: 1}, {10: 0}])
def test_lengths_that_cannot_be_are_refused(lengths: dict[int, int]) -> None:
    with pytest.raises(ConfigError):
        _workload(lengths)
