"""Reading data: measured, told apart, and on the clock where that is asked for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.watching import reading
from zerokit.rehearsal.watching.reading import Reading


class FakeClock:
    def __init__(self) -> None:
        self.now = 0
        self.worked: list[tuple[WorkKind, int]] = []

    def untimed(self) -> Any:
        return contextlib.nullcontext()

    def work_on_host(self, kind: WorkKind, name: str, duration: int) -> None:
        self.worked.append((kind, duration))
        self.now += max(0, duration)


def measured(
    monkeypatch: pytest.MonkeyPatch, *milliseconds: int, takes_time: bool
) -> tuple[Reading, FakeClock]:
    """After batches that took so long."""
    pytest.importorskip("torch")
    clock = FakeClock()
    one = Reading(clock, takes_time=takes_time)  # type: ignore[arg-type]
    at = iter([time for taken in milliseconds for time in (0, taken * 1_000_000)])
    monkeypatch.setattr(reading.time, "perf_counter_ns", lambda: next(at))
    for _ in milliseconds:
        assert one._measured(lambda fetcher, indices: indices, None, [1]) == [1]
    return one, clock


@pytest.mark.torch
def test_the_first_batch_does_what_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, clock = measured(monkeypatch, 90, 2, 4, takes_time=False)
    assert (one.seconds, one.batches) == (pytest.approx(0.003), 3)
    with one.next_batch(SimpleNamespace(_num_workers=3)):
        pass
    assert (one.workers, clock.worked) == (3, [])
    assert measured(monkeypatch, 90, takes_time=False)[0].seconds == pytest.approx(0.09)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("workers", "waits"),
    [
        (0, [4, 4, 4, 4]),
        # They begin as the first batch is asked for, and a step takes 1 ms: two make one in 2 ms each.
        (2, [4, 0, 2, 0]),
        (8, [4, 0, 0, 0]),
    ],
)
def test_workers_make_batches_beside_the_steps(
    workers: int, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, clock = measured(monkeypatch, 9, 4, takes_time=True)

    class Iterator:
        _num_workers, _prefetch_factor = workers, 2

    iterator = Iterator()
    for _ in waits:
        with one.next_batch(iterator):
            pass
        clock.now += 1_000_000  # the step
    milliseconds = [max(0, duration) / 1e6 for _, duration in clock.worked]
    assert milliseconds == waits
    assert {kind for kind, _ in clock.worked} == {WorkKind.DATA}
