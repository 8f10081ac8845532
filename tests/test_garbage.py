"""The collector of garbage is paused, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from zerokit.garbage import paused_collection


@pytest.fixture(params=[True, False])
def was_on(request: pytest.FixtureRequest) -> Iterator[bool]:
    gc.enable() if request.param else gc.disable()
    yield request.param
    gc.enable()


def test_the_collector_is_paused_and_then_as_before(was_on: bool) -> None:
    with paused_collection():
        assert not gc.isenabled()
    assert gc.isenabled() == was_on
