"""The clocks of Python that the script sees go by the rank's virtual time.

Python's own library, zerokit and threads other than the script's own see the real time, so that waits with a
limit take as long as they should. Progress bars show virtual time on any thread, and zerokit's own training
and generation are scripts. A sleep takes its time on both clocks.

Replacements are static methods, so that a class may have one as an attribute.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType
from typing import Any

import torch

from zerokit.patches import Patch, apply, declare, replace, wrap
from zerokit.rehearsal.native.clock import Clock

_GO_BY_THE_CLOCK = "go by the rank's clock"
_SECONDS = declare("time", "time", "perf_counter", "monotonic", purpose=_GO_BY_THE_CLOCK)
_NANOSECONDS = declare("time", "time_ns", "perf_counter_ns", "monotonic_ns", purpose=_GO_BY_THE_CLOCK)
_NOW, _UTCNOW = declare("datetime:datetime", "now", "utcnow", purpose=_GO_BY_THE_CLOCK)
_OF_SECONDS = declare("time", "localtime", "gmtime", "ctime", purpose=_GO_BY_THE_CLOCK)
_OF_DATES = declare("time", "strftime", "asctime", purpose=_GO_BY_THE_CLOCK)
_SLEEP = Patch("time", "sleep", "let virtual time pass, too")
_TIMED = [
    Patch(f"timeit:{name}", "__defaults__", "time by the rank's clock")
    for name in ("Timer.__init__", "timeit", "repeat")
]
_REPEAT = Patch("timeit:Timer", "timeit", "let each repetition take time")
_REAL = sys.stdlib_module_names - {"timeit"} | {"zerokit"}
"""Packages that see the real time."""
_SCRIPTS = ("zerokit.training.", "zerokit.generation.")
"""Modules of them that see virtual time."""
_BARS = "tqdm"
"""Its monitor thread refreshes the bars of all threads."""
_TIMER_SLACK_NS = 50_000
"""How much later than requested Linux wakes a thread (prctl(2), PR_SET_TIMERSLACK)."""
_STATEMENT_NS = 100
"""The least that `timeit` measures: a statement that takes no time would be repeated for ever."""
_MAIN_THREAD = threading.main_thread().ident


def install(clock: Clock) -> None:
    """Replace the clocks of the modules `time` and `datetime`, which start from what they show now."""
    patches = (*_SECONDS, *_NANOSECONDS, *_OF_SECONDS, *_OF_DATES)
    real = {getattr(time, patch.name): patch.name for patch in patches}
    starts = {patch.name: getattr(time, patch.name)() - clock.now for patch in _NANOSECONDS}
    present = _present(clock, starts["time_ns"])
    # The originals read the system's clock by themselves.
    apply(_NOW, lambda _: classmethod(lambda cls, tz=None: cls.fromtimestamp(present(), tz)))
    in_utc = classmethod(lambda cls: cls.fromtimestamp(present(), datetime.UTC).replace(tzinfo=None))
    apply(_UTCNOW, lambda _: in_utc)
    for patch in _OF_DATES:
        others = int(patch.name == "strftime")
        apply(patch, functools.partial(_of_now, present, time.localtime, others))
    for patch in _OF_SECONDS:
        apply(patch, functools.partial(_of_now, present, float, 0))
    for seconds, nanoseconds in zip(_SECONDS, _NANOSECONDS, strict=True):
        start = starts[nanoseconds.name]
        apply(nanoseconds, functools.partial(_clock, clock, start, 1))
        apply(seconds, functools.partial(_clock, clock, start, 1e9))
    _replace_where_imported(real)
    apply(_SLEEP, functools.partial(_sleep, clock))
    wrap(_REPEAT, functools.partial(_repeat, clock))


def _replace_where_imported(real: dict[Any, str]) -> None:
    """Have modules that imported a clock from `time` before, such as tqdm, use its replacement."""

    def is_clock(value: Any) -> bool:
        return type(value) is BuiltinFunctionType and value in real

    def instead(clock: Any) -> Any:
        return getattr(time, real[clock])

    def instead_in(defaults: Any) -> Any:
        return tuple(instead(value) if is_clock(value) else value for value in defaults)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _REAL:
            continue
        for alias, value in list(getattr(module, "__dict__", {}).items()):
            if is_clock(value):
                replace(module, alias, instead)
    for patch in _TIMED:
        apply(patch, instead_in)


def _present(clock: Clock, start: int) -> Callable[[], float]:
    """What gives a replacement the seconds since 1970 that its caller sees."""
    real_time = time.time

    def present() -> float:
        takes_time = _takes_time(2)
        if takes_time is None:
            return real_time()
        return (start + (clock.read() if takes_time else clock.now)) / 1e9

    return present


def _of_now(
    present: Callable[[], float], convert: Callable[[float], Any], others: int, real: Callable[..., Any]
) -> Any:
    """In place of a function of `time` whose last argument, after so many others, is now by default."""

    def of(*given: Any) -> Any:
        if len(given) > others and given[others] is not None:
            return real(*given)
        return real(*given[:others], convert(present()))

    return staticmethod(of)


def _clock(clock: Clock, start: int, unit: float, real: Callable[[], Any]) -> Any:
    """In place of `real`: nanoseconds from `start` on, in units of so many."""

    def now() -> Any:
        takes_time = _takes_time(1)
        if takes_time is None:
            return real()
        nanoseconds = start + (clock.read() if takes_time else clock.now)
        return nanoseconds if unit == 1 else nanoseconds / unit

    return staticmethod(now)


def _sleep(clock: Clock, really_sleep: Callable[[float], None]) -> Any:
    def sleep(seconds: float, /) -> None:
        really_sleep(seconds)
        if _takes_time(1):
            clock.advance(round(seconds * 1e9) + (_TIMER_SLACK_NS if seconds > 0 else 0))

    return staticmethod(sleep)


def _repeat(clock: Clock, repeat: Any, timer: Any, *given: Any, **named: Any) -> Any:
    """As `timeit.Timer.timeit`, whose statement takes some nanoseconds each time, whatever it does."""
    if threading.get_ident() != _MAIN_THREAD:
        return repeat(timer, *given, **named)
    run = timer.inner

    def inner(repetitions: Iterable[None], look: Callable[[], float]) -> float:
        begun = 0

        def begin() -> Iterator[None]:  # once what is set up before is over
            nonlocal begun
            begun = clock.now
            yield from ()

        def end() -> Iterator[None]:
            clock.advance(begun + _STATEMENT_NS * number - clock.now)
            yield from ()

        number = operator.length_hint(repetitions)
        taken: float = run(itertools.chain(begin(), repetitions, end()), look)
        return taken

    timer.inner = inner
    try:
        return repeat(timer, *given, **named)
    finally:
        timer.inner = run


def _takes_time(frames: int) -> bool | None:
    """Whether a look by the caller, so many frames above this one's, takes time; None: it sees the real time.

    Looks of other threads take none, because their number varies between runs.
    """
    module = sys._getframe(frames + 1).f_globals.get("__name__", "")
    package = module.partition(".")[0]
    if package in _REAL and not module.startswith(_SCRIPTS):
        return None
    if threading.get_ident() == _MAIN_THREAD or _in_backward():
        return True
    return False if package == _BARS else None


def _in_backward() -> bool:
    """Whether this thread is one of autograd's, which go on with the script while it waits for them."""
    return torch._C._current_graph_task_id() != -1
