"""Costs of kinds of work, fitted to calls with known times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.calibration.fits import fit_attention_costs
from zerokit.hardware.costs.attention import Attention, AttentionCurve, attention_work

pytestmark = pytest.mark.torch

CALLS = [
    Attention(1, 4, 4, length, length, head_dim, causal)
    for length, head_dim, causal in itertools.product((128, 512, 2048), (64, 128), (False, True))
]
KINDS = AttentionCurve.terms().index("one_block")
"""That such calls tell apart."""


def _works(backward: bool) -> list[tuple[float, ...]]:
    return [attention_work(call, backward, 1) for call in CALLS]


@given(
    st.floats(0.5, 4),
    st.lists(st.just(0.0) | st.floats(0.1, 3), min_size=KINDS - 1, max_size=KINDS - 1),
    st.booleans(),
)
def test_costs_that_explain_all_calls_are_found(products: float, others: list[float], backward: bool) -> None:
    works, costs = _works(backward), (products, *others, 0.0)
    found = fit_attention_costs(works, [sum(map(float.__mul__, costs, work)) for work in works])
    assert found == pytest.approx(costs, rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(0.01, 100), min_size=len(CALLS), max_size=len(CALLS)))
def test_no_kind_costs_less_than_nothing(slowness: list[float]) -> None:
    works = _works(False)
    found = fit_attention_costs(works, [slow * work[0] for slow, work in zip(slowness, works, strict=True)])
    assert found[0] > 0
    assert min(found) >= 0
