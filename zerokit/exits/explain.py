"""Why a run died: of all lines that say something, the one that stands nearest to the cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from zerokit.errors import visible
from zerokit.exits import causes, gpu_memory, nccl
from zerokit.exits.causes import CAUSES, EXIT_CODE, NCCL_TIMEOUT, OUT_OF_MEMORY, ZEROKIT, Weight
from zerokit.exits.codes import meaning, parse_code, signal_of
from zerokit.exits.gpu_memory import Settings
from zerokit.exits.log import Log

_WIDEST = 300
"""Characters of a line that are shown."""
_LATE = 3
"""Signs of progress that other ranks may still print when one has failed."""
_MOST_EVENTS = 2000
"""That are looked at, of a kind: a thousand ranks may say the same."""
_MOST_FRAMES = 400

_PROGRESS = [re.compile(pattern) for pattern in (r"it/s", r"s/it", r"loss['\"]?: ?['\"]?\d", r"loss=\d")]
_RANK = re.compile(r"\[?\b(?:[Rr]ank|default) ?(\d{1,7})\b")
_WORLD_SIZE = re.compile(r"world[ _]size['\"]?[=: ]{1,3}(\d{1,7})", re.IGNORECASE)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
_RAISED = re.compile(r"(?P<kind>[A-Za-z_][\w.]{0,200})(?:: (?P<text>.*))?$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8})')


@dataclass(frozen=True)
class Explanation:
    """Why a run died."""

    cause: str
    """A stable id: an entry of :data:`zerokit.exits.causes.CAUSES`, ``exception``, or ``unknown``."""
    says: str
    """In one line, without a full stop."""
    mend: str | None = None
    line: int | None = None
    """Of the log, from 1."""
    text: str | None = None
    """That line."""
    also: tuple[str, ...] = ()
    """What else the log tells."""


@dataclass(frozen=True)
class _Event:
    weight: Weight
    offset: int
    cause: str
    says: str
    mend: str


def explain_code(code: int) -> Explanation:
    """What an exit code says by itself."""
    says, mend = meaning(code)
    return Explanation(signal_of(code) or EXIT_CODE, says, mend)


def explain_log(log: Log, settings: Settings | None = None) -> Explanation:
    """Why the run of a log died; the cause is ``unknown`` where the log does not say it.

    Args:
        log: what was read of it.
        settings: of the run, if they are known.
    """
    text = log.text
    events = [*_known(log, settings)]
    events += _exceptions(log, events)
    progress = sorted(match.start() for pattern in _PROGRESS for match in pattern.finditer(text))
    last = progress[-_LATE - 1] if len(progress) > _LATE else -1
    # What a run has survived did not end it.
    events = [event for event in events if event.offset > last or event.weight is Weight.EXIT]
    if not events:
        return _silent(log)
    first = min(events, key=lambda event: (event.weight, event.offset))
    line = log.line_at(first.offset)
    begin, end = log.bounds(first.offset)
    rank = _RANK.search(text, begin, end)
    named = rank is not None and first.cause not in (NCCL_TIMEOUT, ZEROKIT)
    says = f"rank {rank[1]}: {first.says}" if rank is not None and named else first.says
    also = (*_also(events, first, log), *(nccl.dumps(text) if first.cause == NCCL_TIMEOUT else ()))
    return Explanation(
        first.cause,
        _short(says),
        first.mend or None,
        line,
        _short(text[begin : min(end, begin + 4 * _WIDEST)].strip()),
        tuple(_short(one) for one in also),
    )


def _known(log: Log, settings: Settings | None) -> Iterator[_Event]:
    taken: set[int] = set()
    for cause in CAUSES:
        found = chain.from_iterable(pattern.finditer(log.text) for pattern in cause.patterns)
        for number, match in enumerate(found):
            begin, end = log.bounds(match.start())
            if number >= _MOST_EVENTS:
                break
            if begin in taken:
                continue
            taken.add(begin)
            groups = {"what": match[0], **match.groupdict(default="")}
            weight, mend = cause.weight, cause.mend
            says = cause.says.format(**groups)
            if cause.name == EXIT_CODE:
                word = groups.get("code", says)
                code = parse_code(word) if not word.lstrip("-").isdigit() or -64 <= int(word) <= 255 else None
                if not code:  # it ended well
                    continue
                says, mend = meaning(code)
                weight = Weight.KILLED if _kills(code) else weight
            elif cause.name == OUT_OF_MEMORY:
                above = log.text[max(0, begin - 20_000) : begin].splitlines()[-80:]
                says, mend = gpu_memory.explain(log.text[match.start() : end], above, settings)
            elif cause.name == NCCL_TIMEOUT:
                size = _WORLD_SIZE.search(log.text)
                says, mend = nccl.explain(nccl.waiting(log.text), int(size[1]) if size else None)
            yield _Event(weight, match.start(), cause.name, says, mend)
            if cause.name == NCCL_TIMEOUT:  # the first tells of all
                break


def _kills(code: int) -> bool:
    """Whether a signal came unasked: a launcher itself ends ranks by SIGTERM, NCCL's watchdog by SIGABRT."""
    name = signal_of(code)
    return name is not None and name not in ("SIGTERM", "SIGABRT", "SIGINT", "SIGHUP")


def _exceptions(log: Log, known: list[_Event]) -> Iterator[_Event]:
    """What tracebacks end with, where nothing better is known of that line."""
    lines = {log.bounds(event.offset)[0] for event in known}
    for number, match in enumerate(_TRACEBACK.finditer(log.text)):
        if number >= _MOST_EVENTS:
            return
        begin, _ = log.bounds(match.start())
        prefix = log.text[begin : match.start()]
        frame = None
        for at, line in log.lines_from(match.start(), _MOST_FRAMES):
            if at == begin or not line.startswith(prefix):
                continue  # another rank's
            rest = line[len(prefix) :]
            if rest.startswith((" ", "\t")) or not rest.strip():
                found = _FRAME.search(rest[:1000])
                if found is not None and ("site-packages" not in found["file"] or frame is None):
                    frame = f"{found['file']}:{found['line']}"
                continue
            raised = _RAISED.match(rest[:2000])
            if raised is None or at in lines or _is_chained(log, at, prefix):
                break
            kind = raised["kind"].rpartition(".")[2]
            if kind in ("SystemExit", "ChildFailedError", "CalledProcessError", "KeyboardInterrupt"):
                break
            says = f"{kind}: {raised['text']}" if raised["text"] else kind
            mend = f"Look at {visible(frame)}" if frame else "Read the traceback"
            yield _Event(Weight.EXCEPTION, at, "exception", says, mend)
            break


def _is_chained(log: Log, offset: int, prefix: str) -> bool:
    """Whether an exception was followed by another one, which says more."""
    after = [line.removeprefix(prefix).strip() for _, line in log.lines_from(offset, 4)][1:]
    return any(line.startswith(_CHAINED) for line in after)


def _also(events: list[_Event], first: _Event, log: Log) -> Iterator[str]:
    """The other kinds of lines, each where it comes first."""
    seen = {first.cause, "lost-rank"}
    for event in sorted(events, key=lambda event: event.offset):
        if event.cause not in seen and event.weight < Weight.EXIT:
            seen.add(event.cause)
            if len(seen) <= 2 + _LATE:
                yield f"line {log.line_at(event.offset)}: {event.says}"


def _silent(log: Log) -> Explanation:
    lines = log.text.rstrip().split("\n")
    last = lines[-1].rpartition("\r")[2].strip()
    if not last:
        return Explanation(
            "unknown", "the log is empty", "Name the log of the ranks, not the launcher's alone"
        )
    return Explanation(
        "unknown",
        "the log does not say why the run ended",
        "If it stops without a word, it was ended from outside: give the exit code, and see 'dmesg -T', "
        "'sacct -j JOB' or 'kubectl describe pod POD'",
        log.line_at(len(log.text.rstrip()) - 1),
        _short(last),
    )


def _short(text: str) -> str:
    text = visible(" ".join(text.split()))
    limit = 4 * _WIDEST
    return text if len(text) <= limit else text[: limit - 1] + "…"


__all__ = ["Explanation", "Settings", "causes", "explain_code", "explain_log"]
