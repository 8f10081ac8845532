"""The events of a run, and the base class of what follows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from zerokit.patches import Patch, wrap

_MAKE_ENGINE = Patch("deepspeed.runtime.engine:DeepSpeedEngine", "__init__", "see engines being made")


class StepEnd(NamedTuple):
    """What a rank had done at the end of an optimizer step."""

    step: int
    """Counted from 1."""
    events: int
    """Allocations and releases."""
    calls: int
    """Collectives."""
    flops: float
    clock_events: list[int] | None
    """The events of :meth:`RankTime.record_events`; None if only memory is rehearsed."""


class Watcher:
    """Follows a run: each method is called at an event, and does nothing by default.

    Watchers have an order. Each sees the end of something before those behind it, and its begin after them,
    as if it were the inner one of nested calls.
    """

    def on_process_start(self) -> None:
        """Before the script runs: replace what this watcher alone has to see."""

    def on_engine_begin(self, model: Any) -> None:
        """DeepSpeed begins to make an engine of `model`."""

    def on_engine_end(self, engine: Any) -> None:
        """The engine is made."""

    def on_optimizer_step_begin(self, optimizer: Any) -> None:
        """An optimizer of torch begins to update parameters."""

    def on_optimizer_step_end(self, optimizer: Any) -> None:
        """It has updated them."""

    def on_engine_step_end(self, engine: Any) -> None:
        """An engine of DeepSpeed has made an optimizer step."""

    def on_step_end(self, end: StepEnd) -> None:
        """An optimizer step of the run has ended, which may be some time ago."""

    def wants_more(self) -> bool:
        """Whether the run goes on although the requested steps are done."""
        return False

    def on_run_end(self) -> None:
        """The last step is done; the script is about to be stopped."""

    def on_exit(self) -> None:
        """The script has ended, was stopped or has failed."""


class Events:
    """Calls the watchers in their order."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watchers = list(watchers)
        self.has_engine = False
        """Whether the script has begun to make a DeepSpeed engine."""

    def add(self, *watchers: Watcher) -> None:
        """Add watchers behind those that are there."""
        self._watchers += watchers

    def start(self) -> None:
        """Start to watch, before the script runs."""
        from torch.optim.optimizer import register_optimizer_step_post_hook as after
        from torch.optim.optimizer import register_optimizer_step_pre_hook as before

        for watcher in self._watchers:
            watcher.on_process_start()
        wrap(_MAKE_ENGINE, self._make_engine)
        before(lambda optimizer, *_: self._begin(Watcher.on_optimizer_step_begin, optimizer))
        after(lambda optimizer, *_: self.end(Watcher.on_optimizer_step_end, optimizer))

    def wants_more(self) -> bool:
        return any(watcher.wants_more() for watcher in self._watchers)

    def _following(self, event: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """The methods for an event, without those that do nothing."""
        for watcher in self._watchers:
            method = getattr(watcher, event.__name__)
            if method.__func__ is not event:
                yield method

    def _begin(self, event: Callable[..., Any], *subject: Any) -> None:
        for method in reversed(list(self._following(event))):
            method(*subject)

    def end(self, event: Callable[..., Any], *subject: Any) -> None:
        """Call the watchers at an event, which is a method of :class:`Watcher`, in their order."""
        for method in self._following(event):
            method(*subject)

    def _make_engine(self, initialize: Any, engine: Any, *arguments: Any, **given: Any) -> None:
        self.has_engine = True
        self._begin(Watcher.on_engine_begin, given.get("model", arguments[1] if len(arguments) > 1 else None))
        initialize(engine, *arguments, **given)
        self.end(Watcher.on_engine_end, engine)
