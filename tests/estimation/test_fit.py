from __future__ import annotations

import pytest

from tests.estimation.requests import answer, question
from zerokit.estimation import find_limits, verdict
from zerokit.units import GIB


def fits(memory: int, **options: object) -> bool:
    return verdict(answer(**options), memory).verdict == "fits"


def test_the_verdict_is_by_the_interval() -> None:
    one = answer()
    low, high = one.device_low_bytes, one.device_high_bytes
    assert one.device.peak_bytes < low < high
    assert verdict(one, high).verdict == "fits"
    assert verdict(one, high - 1).verdict == "tight"
    assert verdict(one, low).verdict == "likely does not fit"
    assert verdict(one, low - 1).verdict == "does not fit"


@pytest.mark.parametrize("stage", [1, 3])
def test_limits_fit_and_the_next_size_does_not(stage: int) -> None:
    memory = 24 * GIB
    options = {"zero_stage": stage}
    limits = find_limits(question(**options), memory)
    assert limits.micro_batch_size is not None
    assert fits(memory, **options, micro_batch_size=limits.micro_batch_size)
    assert not fits(memory, **options, micro_batch_size=limits.micro_batch_size + 1)
    assert limits.seq_len is not None
    assert limits.seq_len % 64 == 0
    assert fits(memory, **options, seq_len=limits.seq_len)
    assert not fits(memory, **options, seq_len=limits.seq_len + 64)
    assert limits.num_gpus == 1
    assert fits(memory, **options, num_gpus=1)


def test_whole_nodes_are_found() -> None:
    from tests.estimation.requests import shape

    memory, model = 24 * GIB, shape("llama-3.1-8b")
    options = {"model": model, "zero_stage": 3, "gradient_checkpointing": True}
    limits = find_limits(question(**options), memory)
    assert limits.num_gpus is not None
    assert limits.num_gpus > 8
    assert limits.num_gpus % 8 == 0
    assert fits(memory, **options, num_gpus=limits.num_gpus)
    assert not fits(memory, **options, num_gpus=limits.num_gpus - 8)


def test_no_size_fits_what_is_too_small() -> None:
    limits = find_limits(question(zero_stage=0), GIB)
    assert (limits.micro_batch_size, limits.seq_len, limits.num_gpus) == (None, None, None)


def test_sequences_end_where_the_model_does() -> None:
    limits = find_limits(question(gradient_checkpointing=True, chunked_loss="liger"), 4000 * GIB)
    assert limits.seq_len == 32768  # its max_position_embeddings


def test_a_bare_number_has_no_batch_to_find() -> None:
    limits = find_limits(question(model=10**9, zero_stage=3), 24 * GIB)
    assert (limits.micro_batch_size, limits.seq_len) == (None, None)
    assert limits.num_gpus is not None
