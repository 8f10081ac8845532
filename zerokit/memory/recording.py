"""What a pass allocates, and what a ZeRO stage does meanwhile: each recorded once, and played together.

What a pass allocates does not depend on the stage, the number of GPUs or offload. What the stage does depends on the
order of calls and gradients, not on the size of a micro-batch. So each recording is shared by many runs. Allocations
in a row are summed up as one `Change`.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any, cast

from zerokit.memory.layout import Parameter
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.stage import Stage
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Change, Changes, Timeline
from zerokit.reporting.phases import Phase

Action = tuple[str, tuple[Any, ...]]
"""A method of the stage, `enter` of the timeline, ``pass``, or what only ends a change, with its arguments."""


class Recorder(Timeline):
    """A timeline that keeps what happens to it: changes, and actions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change | None] = []
        """Before each action."""
        self.actions: list[Action] = []
        self._amounts: list[tuple[TermKind, int, int]] = []
        self._changes: dict[tuple[tuple[TermKind, int, int], ...], Change] = {}
        """Equal layers share their changes."""

    def hold(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            self._counts[kind, unit] += count
            self._amounts.append((kind, unit, count))

    def free(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            self._counts[kind, unit] -= count
            self._amounts.append((kind, unit, -count))

    def spike(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            self._amounts += (kind, unit, count), (kind, unit, -count)

    def enter(self, phase: Phase) -> None:
        self.act("enter", phase)

    def act(self, name: str, *arguments: Any) -> None:
        """Record an action."""
        self.changes.append(self.take_change() if self._amounts else None)
        self.actions.append((name, arguments))

    def take_change(self) -> Change:
        """The change since the last one; something has changed."""
        amounts = tuple(self._amounts)
        self._amounts.clear()
        if amounts not in self._changes:
            self._changes[amounts] = Change(amounts)
        return self._changes[amounts]


class RecordedPass(Recorder):
    """A pass of a model; its actions are those of a stage."""

    @cached_property
    def fetched(self) -> tuple[ModuleCall, ...]:
        """The calls in the order in which the stage fetches them: forward, recomputed, and backward."""
        return tuple([arguments[0] for name, arguments in self.actions if name == "fetch"])

    @cached_property
    def all_changes(self) -> Changes:
        """All changes of the pass."""
        return Changes(self.changes)

    @cached_property
    def phases(self) -> dict[int, Phase]:
        """Those that actions enter, by the number of the action."""
        return {number: arguments[0] for number, (name, arguments) in enumerate(self.actions) if name == "enter"}

    @cached_property
    def stage_actions(self) -> tuple[Hashable, ...]:
        """The actions as a stage sees them."""
        arguments_of_actions = {one for _, arguments in self.actions for one in arguments}
        seen = {one: _seen_by_stage(one) for one in arguments_of_actions}.__getitem__
        return tuple([(name, *map(seen, arguments)) for name, arguments in self.actions])


class Passes:
    """Passes of one run; equal to those of another run if a stage does the same in them."""

    def __init__(self, *passes: RecordedPass) -> None:
        self.each = passes
        self._actions = tuple(one.stage_actions for one in passes)
        self._hash = hash(self._actions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passes) and self._actions == other._actions

    def __hash__(self) -> int:
        return self._hash


def _seen_by_stage(argument: Any) -> Hashable:
    """What a stage reads of a call; parameters and phases are themselves."""
    if not isinstance(argument, ModuleCall):
        return cast(Hashable, argument)
    calls = (tuple(map(_seen_by_stage, some)) for some in (argument.parts, argument.inner))
    return argument.module, argument.parameters, argument.within, *calls


class RecordedRun(Recorder):
    """What a stage does in a step."""

    def play_pass(self, stage: Stage, one: RecordedPass, number: int = 0) -> None:
        """Have the stage do the actions of a pass: that with this number, when all is played."""
        names = ("fetch", "release", "save", "unsave", "ready")
        actions = {name: getattr(stage, name) for name in names}
        if self._amounts:
            self.act("begin")
        done: list[Change | None] = []
        for change, (name, arguments) in zip(one.changes, one.actions, strict=True):
            for key, count in () if change is None else change.sums:
                self._counts[key] += count
            if name in actions:
                actions[name](*arguments)
            done.append(self.take_change() if self._amounts else None)
        self.act("pass", number, Changes(done))

    def play(self, *passes: RecordedPass) -> Timeline:
        """A timeline on which the stage acted, with these passes."""
        timeline = Timeline()
        for own, (name, arguments) in zip(self.changes, self.actions, strict=True):
            if own is not None:
                timeline.change(own)
            if name == "enter":
                timeline.enter(*arguments)
            elif name == "pass":
                number, done = arguments
                timeline.change_in_turn(passes[number].all_changes, done, passes[number].phases)
        return timeline


class RecordedStage(Stage):
    """Records what a stage is told. Without `gathers`, the stage would only listen to `ready`."""

    def __init__(self, recorder: RecordedPass, *, gathers: bool) -> None:
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
