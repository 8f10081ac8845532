"""The events of a run reach the watchers, in their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from zerokit.rehearsal.watching.steps import Steps
from zerokit.rehearsal.watching.watcher import Events, StepEnd, Watcher


class Noting(Watcher):
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    def on_engine_begin(self, model: Any) -> None:
        self._seen.append(f"{self._name} begin {model}")

    def on_engine_end(self, engine: Any) -> None:
        self._seen.append(f"{self._name} end {engine}")

    def on_step_end(self, end: StepEnd) -> None:
        self._seen.append(f"{self._name} step {end.step}")


def test_watchers_see_begins_and_ends_as_nested_calls_would() -> None:
    seen: list[str] = []
    events = Events([Noting("inner", seen)])
    events.add(Watcher(), Noting("outer", seen))

    def initialize(engine: str, *_: Any, **__: Any) -> None:
        seen.append("made")

    events._make_engine(initialize, "engine", None, model="model")
    assert seen == ["outer begin model", "inner begin model", "made", "inner end engine", "outer end engine"]
    assert events.has_engine
    seen.clear()
    events.step_end(StepEnd(3, 0, 0, 0.0, None))
    assert seen == ["inner step 3", "outer step 3"]


@pytest.mark.parametrize("wants", [True, False])
def test_one_watcher_is_enough_to_go_on(wants: bool) -> None:
    class Wanting(Watcher):
        def wants_more(self) -> bool:
            return wants

    assert Events([Watcher(), Wanting()]).wants_more() == wants


def test_what_follows_the_step_of_an_engine_is_part_of_the_step() -> None:
    """Such as the time in which its tensors are labelled."""
    seen = mock.Mock()
    seen.backend.flops_of.return_value = seen.backend.flops = 0.0
    steps = Steps(seen.backend, seen.events, mock.Mock(calls=[]), mock.Mock(flops=0), time=seen.time, last=0)
    engine = SimpleNamespace(global_steps=0)
    steps._step(lambda engine: setattr(engine, "global_steps", 1), engine)
    names = [name for name, *_ in seen.mock_calls]
    ends = ("events.engine_step_end", "time.moment", "events.step_end")
    assert [name for name in names if name in ends] == list(ends)
