"""Loops over all ranks that are done at once: the same blocks, whatever the number of ranks."""

from __future__ import annotations

import pytest

from tests.rehearsal.speed_questions import answer


@pytest.mark.parametrize("num_gpus", [1, 6, 64, 1000])
def test_a_reduce_scatter_allocates_what_deepspeeds_own_does(num_gpus: int) -> None:
    assert answer("reduce_scatter", num_gpus) == []


@pytest.mark.parametrize("num_gpus", [1, 6, 64, 1000])
def test_an_all_gather_allocates_what_deepspeeds_own_does(num_gpus: int) -> None:
    assert answer("all_gather", num_gpus) == []
