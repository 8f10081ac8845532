"""A forward and backward pass, recorded once and played on other timelines and stages.

What a pass allocates does not depend on the ZeRO stage, the number of GPUs or offload; only what the stage
does in between depends on them. Runs that differ in these settings play the same recording. Allocations
between two actions of the stage are summed up as one `Change`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from zerokit.memory.layout import Parameter
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.stage import Stage
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Change, Timeline
from zerokit.reporting.phases import Phase

Action = tuple[str, tuple[Any, ...]]
"""A method of the stage, or `enter` of the timeline, with its arguments."""


class Recorder(Timeline):
    """A timeline that keeps what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self._amounts: list[tuple[TermKind, int, int]] = []
        self._changes: dict[tuple[tuple[TermKind, int, int], ...], Change] = {}
        """Equal layers share their changes."""
        self._steps: list[Change | Action] = []

    def hold(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            self._counts[kind, unit] += count
            self._amounts.append((kind, unit, count))

    def free(self, kind: TermKind, unit: int, count: int) -> None:
        self.hold(kind, unit, -count)

    def spike(self, kind: TermKind, unit: int, count: int) -> None:
        self.hold(kind, unit, count)
        self.free(kind, unit, count)

    def enter(self, phase: Phase) -> None:
        self.act("enter", phase)

    def act(self, name: str, *arguments: Any) -> None:
        """Record an action of the stage."""
        self._end_change()
        self._steps.append((name, arguments))

    @cached_property
    def fetched(self) -> tuple[ModuleCall, ...]:
        """The calls in the order in which the stage fetches them: forward, recomputed, and backward."""
        actions = (step for step in self._steps if not isinstance(step, Change))
        return tuple(arguments[0] for name, arguments in actions if name == "fetch")

    def play(self, timeline: Timeline, stage: Stage) -> None:
        """Do the same on another timeline and stage."""
        self._end_change()
        names = ("fetch", "release", "save", "unsave", "ready")
        actions = {"enter": timeline.enter, **{name: getattr(stage, name) for name in names}}
        for step in self._steps:
            if isinstance(step, Change):
                timeline.change(step)
            else:
                name, arguments = step
                actions[name](*arguments)

    def _end_change(self) -> None:
        if self._amounts:
            amounts = tuple(self._amounts)
            self._amounts.clear()
            if amounts not in self._changes:
                self._changes[amounts] = Change(amounts)
            self._steps.append(self._changes[amounts])


class RecordedStage(Stage):
    """Records what a stage is told. Without `gathers`, the stage would only listen to `ready`."""

    def __init__(self, recorder: Recorder, *, gathers: bool) -> None:
        self._recorder, self.gathers = recorder, gathers

    def fetch(self, call: ModuleCall) -> None:
        if self.gathers:
            self._recorder.act("fetch", call)

    def release(self, call: ModuleCall) -> None:
        if self.gathers and call.parameters:
            self._recorder.act("release", call)

    def save(self, call: ModuleCall, only_trained: bool = False) -> None:
        if self.gathers and call.parameters:
            self._recorder.act("save", call, only_trained)

    def unsave(self, call: ModuleCall) -> None:
        if self.gathers:
            self._recorder.act("unsave", call)

    def ready(self, parameter: Parameter) -> None:
        self._recorder.act("ready", parameter)
