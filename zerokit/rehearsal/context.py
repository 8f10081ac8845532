"""The state of the rank that this process plays, in one object instead of module variables."""

from __future__ import annotations

from typing import Any, TypeVar

State = TypeVar("State")


class RankContext:
    """The state of one rank: one object per requested class, made at the first request.

    A class whose objects have a method `warnings() -> list[str]` adds these lines to the report.
    """

    def __init__(self) -> None:
        self._states: dict[type[Any], Any] = {}

    def state(self, kind: type[State]) -> State:
        """The object of class `kind`."""
        if kind not in self._states:
            self._states[kind] = kind()
        found: State = self._states[kind]
        return found

    def warnings(self) -> list[str]:
        """The report's lines about differences from a run on the cluster."""
        sources = (state for state in self._states.values() if hasattr(state, "warnings"))
        return [line for source in sources for line in source.warnings()]


class _Notes(dict[tuple[str, str], str]):
    """What the rank did otherwise than on the cluster: a line for the report for each."""

    def warnings(self) -> list[str]:
        return [text.format(what=what, why=why) for (text, what), why in self.items()]


_current = RankContext()


def rank_context() -> RankContext:
    """The context of the rank that this process plays."""
    return _current


def begin_rank() -> RankContext:
    """Start with an empty context, as tests do that play several ranks in one process."""
    global _current
    _current = RankContext()
    return _current


def note(text: str, what: str, why: str) -> None:
    """Keep a line for the report: `text` with {what}, once, and with {why}, the first reason or place."""
    rank_context().state(_Notes).setdefault((text, what), why)
