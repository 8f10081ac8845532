from hypothesis import given
from hypothesis import strategies as st

from zerokit.generation.engine import distribute, left_pad

LENGTHS = st.lists(st.integers(1, 50), max_size=60)
SIZES = st.integers(1, 9)


@given(LENGTHS, SIZES, SIZES)
def test_prompts_are_dealt_once_longest_first_in_as_few_equal_rounds_as_they_need(
    lengths: list[int], batch_size: int, world_size: int
) -> None:
    rounds = distribute(lengths, batch_size=batch_size, world_size=world_size)
    assert all(len(batches) == world_size and any(batches) for batches in rounds)
    assert len(rounds) == -(-len(lengths) // (batch_size * world_size))
    dealt = [index for batches in rounds for batch in batches for index in batch]
    assert sorted(dealt) == list(range(len(lengths)))
    assert [lengths[index] for index in dealt] == sorted(lengths, reverse=True)
    sizes = [len(batch) for batches in rounds for batch in batches]
    assert max(sizes, default=0) <= batch_size
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_few_prompts_are_shared_out() -> None:
    assert distribute([1, 1, 1, 1, 1], batch_size=8, world_size=2) == [[(0, 1, 2), (3, 4)]]
    assert distribute([1], batch_size=8, world_size=3) == [[(0,), (), ()]]


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=5))
def test_padding_stands_in_front(sequences: list[list[int]]) -> None:
    ids, mask = left_pad(sequences, pad_token_id=3)
    longest = max(map(len, sequences))
    assert ids.shape == mask.shape == (len(sequences), longest)
    for row, ones, sequence in zip(ids.tolist(), mask.tolist(), sequences, strict=True):
        gap = longest - len(sequence)
        assert row == [3] * gap + sequence
        assert ones == [0] * gap + [1] * len(sequence)
