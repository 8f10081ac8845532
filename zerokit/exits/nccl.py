"""Timed-out collectives of NCCL: which ranks waited, in which call, and which ranks were missing."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from zerokit.tables import table_of
from zerokit.units import format_seconds

# torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, WorkNCCL::timeoutMsg and its printing.
_TIMEOUT = re.compile(
    r"Rank (?P<rank>\d{1,7})\][^\n]{0,40}Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<number>\d{1,12}), OpType=(?P<call>\w{1,40})"
    r"(?:, NumelIn=(?P<elements>\d{1,18}))?[^)]{0,120}Timeout\(ms\)=(?P<limit>\d{1,12})"
)
_DETECTED = re.compile(
    r"(?:\[PG (?:ID \d{1,9} PG GUID (?P<guid>[^\s(\]]{1,80})|(?!ID )(?P<group>\d{1,9}))?[^\]\n]{0,120} |\[)"
    r"Rank (?P<rank>\d{1,7})\] "
    r"(?:Exception \(either an error or timeout\) detected by watchdog at work:"
    r"| ?failure detected by watchdog at work sequence id:|Timeout at NCCL work:) (?P<number>\d{1,12})"
)
"""The same information in other lines: a log may have lost the first, or be cut before it.

A group's GUID, or its number without one, is equal on all its ranks; its ID is local to a process.
"""
_RANK_PREFIX = re.compile(r"\[rank(\d{1,7})\]:[^\n]*$")
"""The rank prefix; a rank number within the line counts within its group."""
_GATHER = "_ALLGATHER_BASE"
"""The call with which ZeRO-3 gathers the weights of a module; other code may use it, too."""
_TEXTS: Mapping[str, Any] = table_of(__file__)
MOST_RANKS = 8
"""Maximum number of ranks to list."""


class Waiting(NamedTuple):
    """A rank that waited in vain."""

    rank: int
    number: int
    """Number of the collective in its group, from 1, equal on all ranks."""
    call: str | None
    """None if the log has lost it."""
    elements: str | None
    limit_seconds: float
    group: str | None = None
    """Its process group, if the log names it; each group counts its own collectives."""


def waiting_ranks(text: str) -> list[Waiting]:
    """The first collective in which each rank waited in vain, ordered by rank."""
    found: dict[int, Waiting] = {}
    for match in _TIMEOUT.finditer(text):
        rank = _rank(match)
        seconds = int(match["limit"]) / 1000
        found.setdefault(rank, Waiting(rank, int(match["number"]), match["call"], match["elements"], seconds))
    if not found:
        return []
    seconds = next(iter(found.values())).limit_seconds
    for match in _DETECTED.finditer(text):
        rank, number, group = _rank(match), int(match["number"]), match["guid"] or match["group"]
        waiting = found.setdefault(rank, Waiting(rank, number, None, None, seconds, group))
        if waiting.number == number and waiting.group is None:
            found[rank] = waiting._replace(group=group)
    known = {(waiting.group, waiting.number): waiting for waiting in found.values() if waiting.call}
    for rank, waiting in found.items():
        if waiting.call is None and waiting.group is not None:
            found[rank] = known.get((waiting.group, waiting.number), waiting)._replace(rank=rank)
    return [found[rank] for rank in sorted(found)]


def _rank(match: re.Match[str]) -> int:
    earliest = max(match.start() - 300, 0)
    begin = max(match.string.rfind("\n", earliest, match.start()) + 1, earliest)
    prefix = _RANK_PREFIX.search(match.string, begin, match.start())
    return int(prefix[1] if prefix else match["rank"])


def explain(ranks: list[Waiting], world_size: int | None) -> tuple[str, str]:
    if not ranks:
        return _answer("no_ranks")
    calls: dict[tuple[int, str | None, str | None], list[int]] = defaultdict(list)
    for one in ranks:
        calls[one.number, one.call, one.elements].append(one.rank)
    parts = []
    for (number, call, elements), those in sorted(calls.items(), key=lambda item: item[0][0])[:MOST_RANKS]:
        size = f", {int(elements):,} elements" if elements else ""
        parts.append(f"{format_ranks(those)} waited in {call or 'a collective'} (number {number}{size})")
    link = _TEXTS["link"] + _TEXTS["no_data_yet"] * (ranks[0].number == 1)
    words = {
        "message": f"timeout after {format_seconds(ranks[0].limit_seconds)}: {'; '.join(parts)}",
        "gathers": _TEXTS["other_modules"] if any(one.call == _GATHER for one in ranks) else "",
        "link": link,
        "slow": _TEXTS["slow"],
    }
    numbers = {one.number for one in ranks}
    absent = set(range(world_size or 0)) - {one.rank for one in ranks}
    if len({one.group for one in ranks if one.group is not None}) > 1:
        return _answer("groups", **words)
    if len({number for number, call, _ in calls if call}) < sum(call is not None for _, call, _ in calls):
        return _answer("calls", **words)
    if len(numbers) > 1:
        behind = [one.rank for one in ranks if one.number == min(numbers)]
        return _answer("behind", who=format_ranks(behind), **words)
    if absent:
        return _answer("absent", who=format_ranks(sorted(absent)), **words)
    are_unknown = world_size is None or any(one.call is None for one in ranks)
    return _answer("unknown" if are_unknown else "all", **words)


def _answer(name: str, **words: str) -> tuple[str, str]:
    message, fix = _TEXTS["answers"][name]
    return message.format(**words), fix.format(**words)


def format_ranks(ranks: list[int]) -> str:
    """Text for ranks: ``rank 3``, ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = [f"{len(words) - MOST_RANKS} more"] if len(words) > MOST_RANKS else []
    return f"rank{'s' * (len(ranks) > 1)} {', '.join([*words[:MOST_RANKS], *more])}"
