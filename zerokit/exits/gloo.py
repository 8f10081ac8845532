"""Timed-out collectives of gloo: which ranks waited, at which line, and which ranks were missing."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from zerokit.code_origin import is_in_library, is_no_file
from zerokit.errors import visible
from zerokit.exits.causes import ADVICE
from zerokit.exits.log import Log
from zerokit.exits.nccl import MOST_RANKS, format_ranks
from zerokit.units import format_seconds

_TIMEOUT = re.compile(r"Timed out waiting (?P<limit>\d{1,12})ms for (?:recv|send) operation")
_RANK_PREFIX = re.compile(r"\[rank(?P<rank>\d{1,7})\]:")
"""torch's rank prefix, perhaps after a prefix of a launcher."""
_WIDEST_PREFIX = 100
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,8}), in (?P<function>\S{1,200})')
_COLLECTIVES = "distributed_c10d.py"
"""torch's file with the collectives."""
_MOST_LINES = 200
_MOST_MATCHES = 2000


class Waiting(NamedTuple):
    """A rank that waited in vain."""

    rank: int
    place: str | None
    """The innermost line of its traceback outside of libraries: ``train.py:40``."""
    call: str | None
    """The collective."""
    limit_seconds: float


def waiting_ranks(log: Log) -> list[Waiting]:
    """Where each rank first waited in vain, ordered by rank."""
    found: dict[int, Waiting] = {}
    for number, match in enumerate(_TIMEOUT.finditer(log.text)):
        if number >= _MOST_MATCHES:
            break
        begin, _ = log.bounds(match.start())
        rank = _rank(log.text[begin : min(begin + _WIDEST_PREFIX, match.start())])
        if rank is not None and rank not in found:
            place, call = _script_line(log, begin, rank)
            found[rank] = Waiting(rank, place, call, int(match["limit"]) / 1000)
    return [found[rank] for rank in sorted(found)]


def _rank(line: str) -> int | None:
    found = _RANK_PREFIX.search(line[:_WIDEST_PREFIX])
    return int(found["rank"]) if found is not None else None


def _script_line(log: Log, begin: int, rank: int) -> tuple[str | None, str | None]:
    """The script's line and the collective in a rank's traceback that ends at `begin`."""
    call = None
    for _, line in log.lines_above(begin, _MOST_LINES):
        if _rank(line) != rank:
            continue
        if "Traceback (most recent call last)" in line:
            break
        frame = _FRAME.search(line)
        if frame is None:
            continue
        if not (is_no_file(frame["file"]) or is_in_library(frame["file"])):
            return f"{visible(PurePath(frame['file']).name)}:{frame['line']}", call
        if call is None and frame["file"].endswith(_COLLECTIVES):
            call = visible(frame["function"])
    return None, call


def explain(ranks: Sequence[Waiting], world_size: int | None) -> tuple[str, str] | None:
    """What happened and what to do; None if no rank is named."""
    if not ranks:
        return None
    still_ran = ADVICE["STILL_RAN"]
    places: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for one in ranks:
        places[one.place, one.call].append(one.rank)
    parts = []
    for (place, call), those in list(places.items())[:MOST_RANKS]:
        at = (f" at {place}" if place else "") + (f" ({call})" if call else "")
        parts.append(f"{format_ranks(those)}{at}")
    if len(places) > MOST_RANKS:
        parts.append(f"others at {len(places) - MOST_RANKS:,} more lines")
    message = f"timeout after {format_seconds(ranks[0].limit_seconds)}: {', '.join(parts)}"
    absent = sorted(set(range(world_size or 0)) - {one.rank for one in ranks})
    # The traceback of this rank is cut off.
    lines, calls = ({one for one in those if one is not None} for those in zip(*places, strict=True))
    # One call may be several collectives, and ranks stop at different ones when a rank is gone.
    if len(lines) > 1 or (len(calls) > 1 and not (lines and absent)):
        missing = "; no rank is missing" if world_size is not None and not absent else ""
        return f"{message}: they called different collectives{missing}", ADVICE["RUNS_ALONE"]
    if absent:
        who = format_ranks(absent)
        return f"{message}; {who} did not reach it", (
            f"See what {who} printed first. If {'it' if len(absent) == 1 else 'they'} still ran: {still_ran}"
        )
    if world_size is not None:
        return f"{message}; none is missing", (
            "All reached the same line: one of them a step later (one batch less, which 'zerokit rehearse' "
            "names), or messages are lost: 'zerokit doctor --hostfile FILE' checks the network"
        )
    return f"{message}; the log does not say whether other ranks are missing", (
        f"Pass the logs of all ranks. If the other ranks still ran: {still_ran}"
    )
