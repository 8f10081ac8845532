"""One answer for the logs of all ranks: the first cause, and what followed from it."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from zerokit.documents import is_folder, unreadable_reason
from zerokit.errors import DocumentError
from zerokit.exits import gloo, nccl
from zerokit.exits.causes import GLOO_TIMEOUT, NCCL_TIMEOUT, Weight
from zerokit.exits.explain import Explanation, explain_log
from zerokit.exits.log import Log, read_log
from zerokit.exits.log_lines import world_size
from zerokit.units import quantity

_LOG = re.compile(r"(?:.*\.(?:log|out|err|txt|[eo]\d+)|std(?:out|err)|nohup\.out)(?:[.-]\d{1,8})?(?:\.(?:gz|bz2|xz))?")
"""Names of logs: of launchers, of Slurm (``slurm-7_0.out``) and PBS (``job.e7``), rotated or compressed."""
_ATTEMPT = re.compile(r"attempt_(\d{1,6})")
"""torchrun's folder of the logs of one start: ``RUN/attempt_0/3/stderr.log``."""
_MOST_LOGS = 10_000
_MOST_ENTRIES = 50_000
"""Maximum files below a folder."""
_MOST_LINES = 8
"""Maximum number of other findings to report."""
_MOST_NAMES = 4
_DATE = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ]"
_TIMES = [
    re.compile(_DATE + r"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"),
    re.compile(r"\[?[EWI](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)"),
]
"""Times of DeepSpeed's and Python's loggers, and of torch's, which has no year."""
_NEAR = 40
"""Maximum lines between an event and the time that a line above it has."""


@dataclass(frozen=True)
class _Found:
    explanation: Explanation
    time: str | None
    """Month, day and time at which it happened, if its log says so."""


def explain_logs(paths: Sequence[str]) -> Explanation:
    """Explain why a run died, by the logs of its ranks; folders are searched for logs.

    Raises:
        DocumentError: no log can be read.
    """
    names, notes = _log_files(paths)
    if len(names) == 1 and not notes:
        return explain_log(read_log(names[0]))
    found: list[_Found] = []
    collectives = _Collectives()
    refused: list[DocumentError] = []
    for name in names:
        try:
            log = read_log(name)
        except DocumentError as error:
            refused.append(error)
            continue
        if log.text.strip():
            explanation = explain_log(log)
            found.append(_Found(explanation, _time(log, explanation)))
            collectives.add(log)
    notes += [f"not read: {error}" for error in refused[:_MOST_NAMES]]
    notes += [f"not read: {len(refused) - _MOST_NAMES} more"] if len(refused) > _MOST_NAMES else []
    if not found and refused:
        raise refused[0]
    if not found:
        raise DocumentError("all logs are empty", where=paths[0], hint="Give the logs of the ranks")
    first = _first(found)
    answer = collectives.explain(first.explanation)
    others = [one.explanation for one in found if one is not first]
    return replace(answer, also=(*answer.also, *_others(answer, others), *notes))


def _first(found: list[_Found]) -> _Found:
    """The log that is closest to the cause; of equal ones the first in time, else in order."""
    nearest = min(one.explanation.weight for one in found)
    causes = [one for one in found if one.explanation.weight == nearest]
    if all(one.time is not None for one in causes):
        return min(causes, key=lambda one: one.time or "")
    return causes[0]


class _Collectives:
    """Which ranks waited in which collective, by all logs."""

    def __init__(self) -> None:
        self.nccl: dict[int, nccl.Waiting] = {}
        self.gloo: dict[int, gloo.Waiting] = {}
        self.world_size: int | None = None

    def add(self, log: Log) -> None:
        self.nccl |= {one.rank: one for one in nccl.waiting_ranks(log.text)}
        self.gloo |= {one.rank: one for one in gloo.waiting_ranks(log)}
        self.world_size = self.world_size or world_size(log)

    def explain(self, answer: Explanation) -> Explanation:
        """An answer about a collective in one log, by all logs."""
        found: tuple[str, str] | None = None
        if answer.cause == NCCL_TIMEOUT:
            found = nccl.explain([self.nccl[rank] for rank in sorted(self.nccl)], self.world_size)
        elif answer.cause == GLOO_TIMEOUT:
            found = gloo.explain([self.gloo[rank] for rank in sorted(self.gloo)], self.world_size)
        return replace(answer, message=found[0], fix=found[1]) if found else answer


def _others(first: Explanation, others: list[Explanation]) -> Iterator[str]:
    """What other logs say: those of one message together, then the last lines of those without a failure."""
    alike: dict[str, list[Explanation]] = defaultdict(list)
    silent = []
    for one in others:
        if one.weight is Weight.NOTHING:
            silent.append(one)
        elif one.cause != first.cause or first.cause not in (NCCL_TIMEOUT, GLOO_TIMEOUT):
            alike[re.sub(r"^rank \d+: ", "", one.message)].append(one)
    for message, those in list(alike.items())[:_MOST_LINES]:
        yield f"{_names([f'{one.log}:{one.line}' for one in those])}: {message}"
    if len(alike) > _MOST_LINES:
        yield f"{quantity(len(alike) - _MOST_LINES, 'other message')}"
    for one in silent[:_MOST_NAMES]:
        place = f"{one.log}:{one.line}"
        if "Traceback (most recent call last)" in (one.text or ""):
            yield f"{place} ends before a traceback tells its error"
        else:
            yield f"{place} ends without an error: {one.text or 'the run ended well'}"
    if len(silent) > _MOST_NAMES:
        yield f"{quantity(len(silent) - _MOST_NAMES, 'more log')} without an error"


def _names(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {quantity(more, 'other')}" if more > 0 else "")


def _time(log: Log, explanation: Explanation) -> str | None:
    """The time of the line that explains, or of one near above it; years are left out, as torch has none."""
    if explanation.offset is None:
        return None
    for _, line in log.lines_above(log.bounds(explanation.offset)[1] + 1, _NEAR):
        for pattern in _TIMES:
            if (found := pattern.search(line[:400])) is not None:
                return f"{int(found['month']):02}-{found['day']} {found['time'].replace(',', '.')}"
    return None


def _log_files(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """All logs, those of folders included, in the order of their numbers; and what is left out.

    Raises:
        DocumentError: a folder has no logs.
    """
    names: list[str] = []
    notes: list[str] = []
    for path in paths:
        if path == "-" or not is_folder(path):
            names.append(path)
            continue
        inside = sorted(_inside(Path(path)), key=_natural)
        if not inside:
            raise DocumentError("has no logs", where=path, hint="Name the files, or a folder with *.log, *.out, *.err")
        last = _last_attempts(inside)
        if len(last) < len(inside):
            left = quantity(len(inside) - len(last), "log")
            notes.append(f"{left} of earlier attempts left out: name a folder attempt_N to explain it")
        names += map(str, last)
    if len(names) > _MOST_LOGS:
        notes.append(f"only the first {_MOST_LOGS:,} of {len(names):,} logs were read")
    return list(dict.fromkeys(names))[:_MOST_LOGS], notes


def _inside(folder: Path) -> Iterator[Path]:
    """The logs below a folder, without following links out of it. DocumentError if it has too many files."""
    seen = 0
    for place, folders, files in os.walk(folder):  # a folder that cannot be listed is left out
        seen += len(files) + len(folders)
        if seen > _MOST_ENTRIES:
            hint = "Name the folder of the run's logs"
            raise DocumentError(f"has more than {_MOST_ENTRIES:,} files", where=folder, hint=hint)
        for name in files:
            path = Path(place, name)
            if _LOG.fullmatch(name) and path.is_file() and unreadable_reason(path, folder) is None:
                yield path


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """A sort key by which rank 10 comes after rank 9."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", str(path))
    ]


def _last_attempts(files: list[Path]) -> list[Path]:
    """The logs without those of torchrun's earlier attempts."""
    last: dict[PurePath, int] = {}
    places = [_attempt(file) for file in files]
    for place in places:
        if place is not None:
            last[place[0]] = max(place[1], last.get(place[0], 0))
    return [file for file, place in zip(files, places, strict=True) if place is None or place[1] == last[place[0]]]


def _attempt(file: Path) -> tuple[PurePath, int] | None:
    """torchrun's folder of a run, and the number of the attempt that a log belongs to."""
    for parent in file.parents:
        if (found := _ATTEMPT.fullmatch(parent.name)) is not None:
            return parent.parent, int(found[1])
    return None
