"""Reading data: measured, told apart, and on the clock where that is asked for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.report import tables
from zerokit.rehearsal.report.report import DataTime, TimeBreakdown
from zerokit.rehearsal.watching import reading
from zerokit.rehearsal.watching.reading import Reading


class FakeClock:
    def __init__(self) -> None:
        self.now = 0
        self.worked: list[tuple[WorkKind, int]] = []
        self.untimed_depth = 0

    @contextlib.contextmanager
    def untimed(self) -> Any:
        self.untimed_depth += 1
        yield
        self.untimed_depth -= 1

    def work_on_host(self, kind: WorkKind, name: str, duration: int) -> None:
        self.worked.append((kind, duration))
        self.now += max(0, duration)


class Iterator:
    """Of a loader."""

    def __init__(self, workers: int = 0) -> None:
        self._num_workers, self._prefetch_factor = workers, 2


def measured(
    monkeypatch: pytest.MonkeyPatch, *milliseconds: int, takes_time: bool, workers: int = 0
) -> tuple[Reading, FakeClock, Iterator]:
    """After batches to train on that took so long, before the last one comes."""
    pytest.importorskip("torch")
    clock = FakeClock()
    one = Reading(clock, takes_time=takes_time)  # type: ignore[arg-type]
    iterator = one.iterator(lambda loader: Iterator(workers), SimpleNamespace(num_workers=workers))
    fetch(one, iterator, monkeypatch, *milliseconds)
    return one, clock, iterator


def fetch(one: Reading, iterator: Any, monkeypatch: pytest.MonkeyPatch, *milliseconds: int) -> None:
    at = iter([time for taken in milliseconds for time in (0, taken * 1_000_000)])
    monkeypatch.setattr(reading.time, "perf_counter_ns", lambda: next(at))
    for _ in milliseconds:
        with one.next_batch(iterator):
            assert one._measured(lambda fetcher, indices: indices, None, [1]) == [1]


@pytest.mark.torch
def test_the_first_batch_does_what_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, clock, iterator = measured(monkeypatch, 90, 2, 4, takes_time=False, workers=3)
    one.came(iterator, is_trained_on=True)
    assert (one.seconds, one.batches) == (pytest.approx(0.003), 3)
    assert (one.workers, clock.worked) == (3, [])
    alone, _, iterator = measured(monkeypatch, 90, takes_time=False)
    alone.came(iterator, is_trained_on=True)
    assert alone.seconds == pytest.approx(0.09)


@pytest.mark.torch
def test_a_worker_s_operators_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    one, clock, iterator = measured(monkeypatch, 9, takes_time=False)
    monkeypatch.setattr(reading.time, "perf_counter_ns", lambda: 0)
    with one._into(one._figures[iterator]):  # as in a worker, where nobody asks the iterator
        one._measured(lambda fetcher: seen.append(clock.untimed_depth), None)
    assert seen == [1]


@pytest.mark.torch
def test_what_is_not_trained_on_is_no_batch_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one, clock, training = measured(monkeypatch, 9, 4, takes_time=True)
    one._measured(lambda fetcher, indices: indices, None, [1])  # data is looked through
    evaluating = one.iterator(lambda loader: Iterator(2), SimpleNamespace(num_workers=2))
    fetch(one, evaluating, monkeypatch, 700)
    one.came(evaluating, is_trained_on=False)
    assert (one.seconds, one.batches, one.workers) == (None, 0, 0)
    one.came(training, is_trained_on=True)
    assert (one.seconds, one.batches) == (pytest.approx(0.004), 2)
    # An evaluation takes its own time.
    assert [duration for _, duration in clock.worked] == [700_000_000, 4_000_000]


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
    one, clock, iterator = measured(monkeypatch, 9, 4, takes_time=True, workers=workers)
    for _ in waits:
        one.came(iterator, is_trained_on=True)
        clock.now += 1_000_000  # the step
    milliseconds = [max(0, duration) / 1e6 for _, duration in clock.worked]
    assert milliseconds == waits
    assert {kind for kind, _ in clock.worked} == {WorkKind.DATA}


def told(*, data: float, is_in_step: bool) -> str:
    """The line of a step that waits so long for its data."""
    parts = dict.fromkeys(TimeBreakdown.model_fields, 0.0) | {"data": data, "compute": 0.5}
    facts = DataTime(
        batch_seconds=0.01, is_in_step=is_in_step, batches=3, workers=2, batches_of_step=1, workers_needed=1
    )
    line, _ = tables._data(SimpleNamespace(data=facts, breakdown=TimeBreakdown(**parts)))  # type: ignore[arg-type]
    return line


def test_the_line_says_what_a_step_waits_for() -> None:
    assert "not in the step's time (--with-data-time)" in told(data=0, is_in_step=False)
    hidden = told(data=0, is_in_step=True)
    assert "on this machine, of which the step waits for nothing: 1 worker would hide it" in hidden
    assert "of which the step waits for 2.5 ms" in told(data=0.0025, is_in_step=True)
