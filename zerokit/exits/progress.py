"""Progress lines of a log, and the attempt that a line belongs to."""

import re
from bisect import bisect_right

from zerokit.exits.log import Log

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
