"""Explains why a run died: finds the line that is closest to the cause."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

from zerokit.errors import PreemptedError, visible
from zerokit.exits import flight_recorder, gloo, gpu_memory, nccl, tracebacks
from zerokit.exits.causes import (
    CAUSES,
    EMPTY_TENSOR,
    EXCEPTIONS,
    EXIT_CODE,
    GLOO_TIMEOUT,
    GPU_TAKEN,
    LOST_RANK,
    NCCL_TIMEOUT,
    OUT_OF_MEMORY,
    TIME_LIMIT,
    ZERO_INIT,
    ZEROKIT,
    Cause,
    Weight,
    with_advice,
)
from zerokit.exits.codes import meaning, parse_code, signal_of
from zerokit.exits.killed_rank import killed_ranks
from zerokit.exits.libraries import where_to_look
from zerokit.exits.log import Log
from zerokit.exits.log_lines import (
    PROGRESS,
    attempt,
    is_below_frame,
    is_quoted,
    lines_of_progress,
    most_late,
    world_size,
)
from zerokit.tables import table_of
from zerokit.units import quantity

_MAX_WIDTH = 300
"""Maximum characters of a line in the output."""
_MAX_EVENTS = 2000
"""Maximum events per kind: a thousand ranks may print the same line."""
_MAX_OTHERS = 3
"""Maximum number of other kinds of lines to report."""
_MAX_ZEROKIT_ERRORS = 50
"""Maximum number of zerokit's own errors: a thousand ranks may have one each."""

_RANK = re.compile(r"\[?\b(?:[Rr]ank|default) ?(\d{1,7})\b")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_LEVEL_BELOW_ERROR = re.compile(
    r"(?<!NCCL )\bWARN\b|(?<!=)\b(?:WARNING|INFO|DEBUG|NOTICE)\b|[Ww]arning: "
    r"|^(?:\[\w+\]: ?)?[IW]\d{4} "
)
"""A log level before the words of a cause: the line is no error."""
_CONTINUES = re.compile(r"\b(?:try|trying|tries|retry|retries|retrying|falling back|skipping|ignoring)\b")
"""Words after the cause: the program continues, unless an exception says them."""
_EXCEPTION = re.compile(r"(?:Error|Exception)\b: ")
_STARTED = re.compile(r"^\[.{0,80}\] process \d+ spawned with command: ", re.MULTILINE)
_EXITED = re.compile(r"^\[.{0,80}\] Process \d+ exits successfully", re.MULTILINE)
"""DeepSpeed's launcher prints these for each rank at its start and its end."""
_FEW_LINES = 20
"""Lines that a rank prints while importing and initializing."""
_STEP = re.compile(r"(?:step|iter(?:ation)?|epoch|batch|loss)s?['\"]?\W{0,3}\d", re.IGNORECASE)
"""Lines about steps, of any script or of DeepSpeed."""
_WAIT_ABORT = re.compile(
    r"Watchdog caught collective operation timeout|[Ww]atchdog thread terminated with exception"
    r"|what\(\): {1,2}[^\n]{0,300}(?:Connection (?:closed|reset) by peer|Timed out waiting)"
)
"""Messages of C++ code that aborts a rank because it waited for another one, or lost it."""
_HOST_MEMORY = "host-memory"
_BY_FRAMES = (OUT_OF_MEMORY, GPU_TAKEN, EMPTY_TENSOR, ZERO_INIT, LOST_RANK)
"""Causes whose details are in the traceback."""
_ELASTIC = "torch/distributed/elastic/"
_STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
"""Signals of launchers, schedulers and users, which end a run that another rank has failed."""
_LOCK_WAIT = re.compile(r"\bwaiting for (?P<lock>/[^\n]{1,400}/lock) to go: remove it")
"""Message of `distributed/extensions` while it waits for a lock of zerokit's extensions."""
_TRAINED = re.compile(r"['\"]train_runtime['\"]: ")
"""The Trainer prints it after training, before the model is saved."""
_END = 4000
"""Characters."""
_FIRST_FAILED = re.compile(
    r"Root Cause \(first observed failure\):(?:[^\n]{0,200}\n){1,5}?[^\n]{0,60}rank {1,8}: (\d{1,7})"
)
"""torchrun's report of the rank that failed first."""
_TEXTS = table_of(__file__)


def _answer(name: str) -> dict[str, Any]:
    """Message and fix of an answer of the table."""
    return {**_TEXTS[name], "fix": with_advice(_TEXTS[name]["fix"])}


@dataclass(frozen=True)
class Explanation:
    """Why a run died."""

    cause: str
    """A stable id: an entry of :data:`zerokit.exits.causes.CAUSES`, ``exception``, ``ended-well``, or
    ``unknown``."""
    message: str
    """One line without a full stop."""
    fix: str | None = None
    line: int | None = None
    """Line number in the log, from 1."""
    text: str | None = None
    """The text of that line."""
    also: tuple[str, ...] = ()
    """Other findings in the log."""
    log: str | None = None
    """The name of the log."""
    weight: Weight = Weight.NOTHING
    """How close it is to the cause."""
    offset: int | None = None
    """Of the line, in the text of the log."""


_ENDED_WELL = Explanation("ended-well", "nothing failed: according to its last lines the run ended well")


@dataclass(frozen=True)
class _Event:
    weight: Weight
    offset: int
    cause: str
    message: str
    fix: str
    is_in_log: bool = False
    """Whether another line has the reason of an exit code."""
    end: int = 0
    """Offset in its last line, if it has several: a program's line and the exception below it."""


def explain_code(code: int) -> Explanation:
    """Explain an exit code alone."""
    message, fix, in_log = meaning(code)
    fix += ": zerokit explain-exit LOG" if in_log else ""
    return Explanation(signal_of(code) or EXIT_CODE, message, fix)


def explain_log(log: Log) -> Explanation:
    """Explain why the run of a log died; the cause is ``unknown`` if the log does not show it."""
    text = log.text
    events = [*_known_causes(log)]
    events += _exceptions(log, events)
    left = _final_events(events, log)
    left = [event for event in left if not _is_late_time_limit(event, left)]
    if all(event.weight in (Weight.GENERAL, Weight.MENTIONED) for event in left) and _has_ended_well(log):
        return replace(_ENDED_WELL, log=log.name)
    if not left:
        return _unexplained(log, tuple(_other_findings(events, None, log)))
    root = _FIRST_FAILED.search(text)

    def nearness(event: _Event) -> tuple[Weight, int, bool, int]:
        """Among equal events, those of the rank that failed first according to its launcher come first.

        Being asked to stop comes last: it has a reason.
        """
        rank = _RANK.search(text, *log.bounds(event.offset)) if root is not None else None
        is_other = root is not None and (rank is None or rank[1] != root[1])
        return event.weight, _stop_order(event), is_other, event.offset

    chosen = min(left, key=nearness)
    first = _with_details(chosen, log)
    line = log.line_at(first.offset)
    begin, end = log.bounds(first.offset)
    rank = _RANK.search(text, begin, end)
    named = rank is not None and first.cause not in (NCCL_TIMEOUT, GLOO_TIMEOUT, ZEROKIT)
    message = f"rank {rank[1]}: {first.message}" if rank is not None and named else first.message
    # Only an event from outside the run means that a process was killed for host memory.
    is_killed = (first.weight is Weight.ENDED and first.cause == _HOST_MEMORY) or "(SIGKILL)" in first.message
    if is_killed and (who := killed_ranks(log, *attempt(log, first.offset))):
        message = f"{first.message}: it was {who}"
    fix = first.fix
    if first.is_in_log and "(SIGTERM)" in first.message:
        fix = _TEXTS["find_sender"]
    elif first.is_in_log and all(event.cause == EXIT_CODE for event in events):
        fix = _TEXTS["launcher_log"]
    hang = _hang_hint(log) if _is_stop(first) else ""
    also = (
        *(_other_zerokit_errors(first, left, log) if first.cause == ZEROKIT else ()),
        *_other_findings(events, chosen.cause, log),
        *(flight_recorder.dumps(text) if first.cause == NCCL_TIMEOUT else ()),
    )
    return Explanation(
        first.cause,
        _short(message),
        fix + hang or None,
        line,
        _short(text[begin : min(end, begin + 4 * _MAX_WIDTH)].strip()),
        tuple(map(_short, also)),
        log.name,
        first.weight,
        first.offset,
    )


def _final_events(events: list[_Event], log: Log) -> list[_Event]:
    """The events after which the run did not continue, except for a few lines of other ranks.

    If Python itself ended with an exit code, the last exceptions before it are the cause, however much was
    printed later.
    """
    progress, limit = lines_of_progress(log), most_late(log)

    def lines_after(event: _Event) -> int:
        return len(progress) - bisect_right(progress, event.offset)

    kinds = {event.weight for event in events}
    causes = [event for event in events if event.weight <= Weight.EXCEPTION]
    ends_itself = bool(kinds & {Weight.EXIT, Weight.LEFT}) and Weight.KILLED not in kinds
    limit += min(map(lines_after, causes), default=0) if ends_itself else 0
    always = (Weight.EXIT, Weight.LEFT)
    return [event for event in events if event.weight in always or lines_after(event) <= limit]


def _is_late_time_limit(event: _Event, others: list[_Event]) -> bool:
    """Whether a time limit ended only ranks that were waiting for a rank that had failed before."""
    return event.cause == TIME_LIMIT and any(
        one.offset < event.offset and one.weight in (Weight.CAUSE, Weight.EXCEPTION) for one in others
    )


def _weight_of(event: Weight, log: Log, match: re.Match[str]) -> Weight:
    """The weight of a cause, unless its line is no error or another line has more information."""
    begin, end = log.bounds(match.start())
    before = log.text[max(begin, match.start() - _MAX_WIDTH) : match.start()]
    if event > Weight.EXCEPTION:
        has_cause = event is Weight.CONSEQUENCE and tracebacks.is_chained(log, begin, "")
        return Weight.GENERAL if has_cause else event
    after = log.text[match.start() : min(end, match.end() + _MAX_WIDTH)]
    raised, level = _EXCEPTION.search(before), _LEVEL_BELOW_ERROR.search(before)
    # Another program may log all output of a run at the same level.
    if raised and level and is_below_frame(log, begin, before[: level.end()]):
        return event
    tried_again = _CONTINUES.search(after) is not None and raised is None
    return Weight.MENTIONED if tried_again or level else event


def _known_causes(log: Log) -> Iterator[_Event]:
    seen: set[int] = set()
    gloo_timeout = gloo.explain(gloo.waiting_ranks(log), world_size(log))
    for cause in CAUSES:
        found = chain.from_iterable(pattern.finditer(log.text) for pattern in cause.patterns)
        for number, match in enumerate(found):
            begin, end = log.bounds(match.start())
            if number >= _MAX_EVENTS:
                break
            if begin in seen:
                continue
            seen.add(begin)
            # A match that covers a program's line and the exception below it is no quotation.
            last, last_end = (begin, end) if match.end() <= end else log.bounds(match.end() - 1)
            if is_quoted(log, last, log.text[last : min(last_end, last + _MAX_WIDTH)]):
                continue
            groups = match.groupdict(default="")
            weight, is_in_log = _weight_of(cause.weight, log, match), False
            message, fix = cause.fill(match)
            if cause.name == EXIT_CODE:
                word = groups.get("code", message)
                code = parse_code(word) if not word.lstrip("-").isdigit() or -64 <= int(word) <= 255 else None
                if not code:  # it ended well
                    continue
                message, fix, is_in_log = meaning(code)
                is_end = code == PreemptedError.exit_code or _kills(code, log)
                weight = Weight.KILLED if is_end else Weight.LEFT if _is_own_code(code) else weight
            elif cause.name == NCCL_TIMEOUT:
                message, fix = nccl.explain(nccl.waiting_ranks(log.text), world_size(log))
            elif cause.name == GLOO_TIMEOUT and "who" not in groups:
                message, fix = gloo_timeout or (message, fix)
            yield _Event(weight, match.start(), cause.name, message, fix, is_in_log, last)
            if cause.name == NCCL_TIMEOUT:  # the first line explains all
                break


def _with_details(event: _Event, log: Log) -> _Event:
    """Add details from the lines around an event. They are slow, so only reported events get them."""
    if event.cause not in _BY_FRAMES:
        return event
    begin, end = log.bounds(event.offset)
    above = tracebacks.frames_above(log, begin, log.text[begin : min(end, begin + 4 * _MAX_WIDTH)])
    if event.cause in (EMPTY_TENSOR, ZERO_INIT):
        # Under transformers' own ZeRO-3 no weights are initialized in from_pretrained.
        is_init = event.cause == ZERO_INIT or _has(above, "in _init_weights")
        is_loading = _has(above, "in from_pretrained") or _has(above, ".from_pretrained(")
        return replace(event, cause=ZERO_INIT, **_answer("zero_init")) if is_init and is_loading else event
    if event.cause == LOST_RANK:
        place = "lost_exit_barrier" if _has(above, "exit_barrier") else "lost_rendezvous"
        return replace(event, cause="no-meeting", **_answer(place)) if _has(above, _ELASTIC) else event
    if event.cause == GPU_TAKEN:
        pinned = gpu_memory.explain_pinning(above)
        return replace(event, cause="pinned-memory", message=pinned[0], fix=pinned[1]) if pinned else event
    line = log.text[event.offset : min(end, event.offset + 4 * _MAX_WIDTH)]
    message, fix = gpu_memory.explain(line, above)
    return replace(event, message=message, fix=fix)


def _has(frames: list[str], words: str) -> bool:
    return any(words in frame for frame in frames)


def _kills(code: int, log: Log) -> bool:
    """Whether a signal came from outside: launchers send SIGTERM, and waiting ranks end with SIGABRT."""
    name = signal_of(code)
    if name == "SIGABRT":
        return _WAIT_ABORT.search(log.text) is None
    return name is not None and name not in _STOP_SIGNALS


def _is_stop(event: _Event) -> bool:
    return any(f"({name})" in event.message for name in _STOP_SIGNALS)


def _stop_order(event: _Event) -> int:
    """0 for what no one asked for; a run that knows that it was asked to stop says more than the signal."""
    return 2 if _is_stop(event) else 1 if event.message == meaning(PreemptedError.exit_code).message else 0


def _is_own_code(code: int) -> bool:
    """Whether a program chose the code: 1 is that of an exception, 255 that of any ssh failure."""
    return signal_of(code) is None and code not in (1, 255)


def _exceptions(log: Log, known: list[_Event]) -> Iterator[_Event]:
    """Exceptions in lines without a better explanation."""
    better = [event for event in known if event.weight is not Weight.MENTIONED]
    lines = {log.bounds(offset)[0] for event in better for offset in (event.offset, event.end)}
    for raised in tracebacks.exceptions(log):
        if log.bounds(raised.offset)[0] in lines:
            continue
        # A launcher's exception about a failed script, or about a program that a rank started.
        is_less = raised.is_survived or raised.kind == "CalledProcessError"
        message = f"{raised.kind}: {raised.text}" if raised.text else raised.kind
        where = f" ({raised.where})" if raised.where else ""
        name, weight, fix = "exception", Weight.EXCEPTION, ""
        places = f"{raised.library or ''} {raised.frame or ''}"
        if (row := _row_of(message, places)) is not None:
            cause, match = row
            name, weight, (message, fix) = cause.name, cause.weight, cause.fill(match)
        if raised.is_bare and weight is not Weight.CAUSE:
            weight = Weight.GENERAL
        weight = Weight.MENTIONED if is_less else weight
        yield _Event(weight, raised.offset, name, message + where, fix or where_to_look(raised))


@lru_cache(maxsize=_MAX_EVENTS)
def _row_of(message: str, places: str) -> tuple[Cause, re.Match[str]] | None:
    """The row that explains an exception, which many ranks may raise."""
    for cause in EXCEPTIONS:
        if cause.within.search(places):
            for pattern in cause.patterns:
                if (match := pattern.search(message)) is not None:
                    return cause, match
    return None


def _other_zerokit_errors(first: _Event, events: list[_Event], log: Log) -> Iterator[str]:
    """zerokit's other errors; it reports all mistakes at once, one per line."""
    own = {event.message: event.offset for event in reversed(events) if event.cause == ZEROKIT}
    others = sorted((offset, message) for message, offset in own.items() if message != first.message)
    yield from (f"line {log.line_at(offset)}: {message}" for offset, message in others[:_MAX_ZEROKIT_ERRORS])
    if len(others) > _MAX_ZEROKIT_ERRORS:
        yield f"{len(others) - _MAX_ZEROKIT_ERRORS:,} more errors of zerokit"


def _other_findings(events: list[_Event], cause: str | None, log: Log) -> Iterator[str]:
    """The other kinds of lines, each at its first occurrence."""
    seen = {cause, LOST_RANK}
    for event in sorted(events, key=lambda event: event.offset):
        if event.cause not in seen and event.weight not in (Weight.EXIT, Weight.LEFT):
            seen.add(event.cause)
            if len(seen) <= 2 + _MAX_OTHERS:
                yield f"line {log.line_at(event.offset)}: {_with_details(event, log).message}"


def _end(log: Log) -> int:
    """The offset of the last lines."""
    return log.bounds(max(0, len(log.text) - _END))[0]


def _has_ended_well(log: Log) -> bool:
    """Whether DeepSpeed's launcher reports a good end for all ranks."""
    exited = len(_EXITED.findall(log.text))
    return _EXITED.search(log.text, _end(log)) is not None and len(_STARTED.findall(log.text)) <= exited


def _unexplained(log: Log, also: tuple[str, ...]) -> Explanation:
    lines = log.text.rstrip().split("\n")
    last = lines[-1].rpartition("\r")[2].strip()
    if not last:
        return Explanation(
            "unknown", "the log is empty", "Give the log of the ranks, not only the launcher's", log=log.name
        )
    end = _end(log)
    exited = _EXITED.search(log.text, end)
    left = len(_STARTED.findall(log.text)) - len(_EXITED.findall(log.text))
    message = "the log does not show why the run ended" + ("" if also else ", nor that it failed")
    if exited and left > 0:
        message += f"; it does not show that {quantity(left, 'rank')} reached the end"
    elif _TRAINED.search(log.text, end):
        message += "; training finished, and what is saved after it may be missing"
    return Explanation(
        "unknown",
        message,
        "If it stops without a message before its end, it was ended from outside: give the exit "
        "code, and check 'dmesg -T', 'sacct -j JOB' or 'kubectl describe pod POD'" + _hang_hint(log),
        log.line_at(len(log.text.rstrip()) - 1),
        _short(last),
        tuple(map(_short, also)),
        log.name,
    )


def _hang_hint(log: Log) -> str:
    """Hint for a run that may have hung since its start; empty for others."""
    if not _has_no_step(log):
        return ""
    waits = _LOCK_WAIT.search(log.text)
    if waits is None:
        return str(_TEXTS["hang"])
    return f". It waited for {visible(waits['lock'])}: remove it if no program compiles there"


def _has_no_step(log: Log) -> bool:
    """Whether DeepSpeed's launcher started ranks that printed no more than initialization does."""
    started = [match.end() for match in _STARTED.finditer(log.text)]
    if not started:
        return False
    begin = started[-1]
    failed = _TRACEBACK.search(log.text, begin)
    is_short = log.text.count("\n", begin, failed.start() if failed else None) <= _FEW_LINES * len(started)
    return is_short and not any(step.search(log.text, begin) for step in (*PROGRESS, _STEP))


def _short(text: str) -> str:
    limit = 4 * _MAX_WIDTH
    text = visible(" ".join(text.split())[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"
