"""Compares log lines without the prefixes of launchers, schedulers and loggers, and finds lines of steps."""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable

from zerokit.exits.log import Log

WIDEST_PREFIX = 300
_MOST_LINES = 400
_TIMES = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_DIGIT = re.compile(r"\d")
_compiled = functools.lru_cache(4096)(re.compile)
"""re's own cache is too small for the prefixes of a thousand ranks."""
_INDENTED = re.compile(r"(?P<prefix>.{0,100}?(?:[ |]*\|)?)(?P<indent> {2,})\S")
_QUOTES = re.compile(r'File "[^"]{1,400}", line \d|\S{1,400}:\d{1,8}: \w*Warning: ')
"""A line above quoted source code."""
_DRAWN = re.compile(r"[^\w\n]{0,40}[│┃]|-{2,}> ?\d{1,6} | {2,}\d{1,6} {2,}\S")
"""Source code as rich and IPython print it: in a box, or with a line number."""
_FRAME = re.compile(r'File "[^"]{1,400}", line \d')
_NEAR = 4
"""Maximum lines between an exception and the frame above it."""


def beginning(prefix: str) -> Callable[[str], object]:
    """A function that checks whether a line starts with a prefix; digits of times may differ."""
    times = _TIMES.findall(prefix)
    if not times:
        return lambda line: line.startswith(prefix)
    first, *others = map(re.escape, _TIMES.split(prefix))
    shapes = (_DIGIT.sub(r"\\d", re.escape(time)) for time in times)
    like = _compiled(first + "".join(shape + other for shape, other in zip(shapes, others, strict=True)))
    return like.match


def is_quoted(log: Log, begin: int, line: str) -> bool:
    """Whether a line is quoted source code below a traceback's or warning's location."""
    if _DRAWN.match(line):
        return True
    indented = _INDENTED.match(line)
    if indented is None:
        return False
    prefix = indented["prefix"]
    is_own = beginning(prefix)
    for _, above in log.lines_above(begin, _MOST_LINES):
        if not is_own(above):
            continue  # another rank's
        rest = above[len(prefix) :]
        words = rest.lstrip(" ")
        if len(rest) - len(words) < len(indented["indent"]):
            return _QUOTES.match(words) is not None
    return False


def is_below_frame(log: Log, begin: int, prefix: str) -> bool:
    """Whether a frame with the same prefix is right above a line, which then ends a traceback."""
    near = filter(beginning(prefix), (above for _, above in log.lines_above(begin, _NEAR)))
    return any(_FRAME.search(above) for above in near)


PROGRESS = [re.compile(pattern) for pattern in (r"it/s", r"s/it", r"loss['\"]?: ?['\"]?\d", r"loss=\d")]
_LATE = 3
"""Progress lines that other ranks may still print after a failure."""
_RANKS = [re.compile(rf"\[{word}(\d{{1,5}})\]") for word in ("rank", "Rank ", "default")]
_WORLD_SIZE = re.compile(r"world[ _]size['\"]?[=: ]{1,3}(\d{1,7})", re.IGNORECASE)
_STARTS = re.compile(
    r"process \d{1,10} spawned with command: |Setting OMP_NUM_THREADS environment variable for each process"
)
"""DeepSpeed's launcher and torchrun print it when they start ranks."""


def world_size(log: Log) -> int | None:
    found = _WORLD_SIZE.search(log.text)
    return int(found[1]) if found else None


def lines_of_progress(log: Log) -> list[int]:
    """Offsets of progress lines, in order."""
    found = (match.start() for pattern in PROGRESS for match in pattern.finditer(log.text))
    return sorted({log.bounds(offset)[0] for offset in found})


def most_late(log: Log) -> int:
    """Maximum progress lines after a failure that ended the run: other ranks go on for a moment."""
    ranks = {int(match[1]) + 1 for pattern in _RANKS for match in pattern.finditer(log.text)}
    return _LATE * max(1, world_size(log) or 1, *ranks)


def attempt(log: Log, offset: int) -> tuple[int, int]:
    """The offsets between which a log describes the attempt that a line belongs to.

    An appended or requeued log has several attempts. Between them ranks are started, or have made steps.
    """
    progress, late = lines_of_progress(log), most_late(log)
    before = bisect_right(progress, offset)
    starts = [match.end() for match in _STARTS.finditer(log.text)]
    begun = bisect_right(starts, offset)
    begins = [0, *starts[:begun][-1:], *([progress[before - late - 1]] if before > late else [])]
    ends = [len(log.text), *starts[begun:][:1], *progress[before + late :][:1]]
    return max(begins), min(ends)
