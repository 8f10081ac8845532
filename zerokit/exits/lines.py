"""The lines of a log below what launchers, schedulers and loggers write before them."""

from __future__ import annotations

import re

from zerokit.exits.log import Log

WIDEST_PREFIX = 300
_MOST_LINES = 400
_TIMES = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_INDENTED = re.compile(r"(?P<prefix>.{0,100}?(?:[ |]*\|)?)(?P<indent> {2,})\S")
_QUOTES = re.compile(r'File "[^"]{1,400}", line \d|\S{1,400}:\d{1,8}: \w*Warning: ')
"""Above a line of a program."""
_DRAWN = re.compile(r"[^\w\n]{0,40}[│┃]|-{2,}> ?\d{1,6} | {2,}\d{1,6} {2,}\S")
"""A line of a program as rich and IPython show it: in a box, or with its number."""
_FRAME = re.compile(r'File "[^"]{1,400}", line \d')
_NEAR = 4
"""Lines between an exception and the last frame above it: what a program's line takes."""


def begins_with(line: str, prefix: str) -> bool:
    """Whether a line begins with a prefix, of which times may be others."""
    if line.startswith(prefix):
        return True
    return (
        _TIMES.search(prefix) is not None
        and len(line) >= len(prefix)
        and _TIMES.sub("", line[: len(prefix)]) == _TIMES.sub("", prefix)
    )


def is_quoted(log: Log, begin: int, line: str) -> bool:
    """Whether a line is one of a program, below the place in it that a traceback or a warning names."""
    if _DRAWN.match(line):
        return True
    indented = _INDENTED.match(line)
    if indented is None:
        return False
    prefix = indented["prefix"]
    for _, above in log.lines_above(begin, _MOST_LINES):
        if not begins_with(above, prefix):
            continue  # another rank's
        rest = above[len(prefix) :]
        words = rest.lstrip(" ")
        if len(rest) - len(words) < len(indented["indent"]):
            return _QUOTES.match(words) is not None
    return False


def is_below_frame(log: Log, begin: int, prefix: str) -> bool:
    """Whether a line ends a traceback: a frame with the same prefix stands right above it."""
    near = (above for _, above in log.lines_above(begin, _NEAR) if begins_with(above, prefix))
    return any(_FRAME.search(above) for above in near)
