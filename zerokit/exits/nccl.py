"""Timed-out collectives of NCCL: which ranks waited, in which call, and which ranks were missing."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

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
_OTHER_MODULES = (
    ". If this is ZeRO-3, the ranks mostly ran different modules: text only on one and images on another, or "
    "other experts. Run each module on all ranks (with a dummy input), or declare them with "
    "deepspeed.utils.set_z3_leaf_modules"
)
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
    """The rank that printed a line."""
    earliest = max(match.start() - 300, 0)
    begin = max(match.string.rfind("\n", earliest, match.start()) + 1, earliest)
    prefix = _RANK_PREFIX.search(match.string, begin, match.start())
    return int(prefix[1] if prefix else match["rank"])


def explain(ranks: list[Waiting], world_size: int | None) -> tuple[str, str]:
    """What happened and what to do.

    Args:
        ranks: from :func:`waiting_ranks`.
        world_size: if the log has it.
    """
    if not ranks:
        return "a collective of NCCL timed out", (
            "Keep what all ranks print; with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 they write what each waits for"
        )
    calls: dict[tuple[int, str | None, str | None], list[int]] = defaultdict(list)
    for one in ranks:
        calls[one.number, one.call, one.elements].append(one.rank)
    parts = []
    for (number, call, elements), those in sorted(calls.items(), key=lambda item: item[0][0])[:MOST_RANKS]:
        size = f", {int(elements):,} elements" if elements else ""
        parts.append(f"{format_ranks(those)} waited in {call or 'a collective'} (number {number}{size})")
    message = f"timeout after {format_seconds(ranks[0].limit_seconds)}: {'; '.join(parts)}"
    gathers = _OTHER_MODULES if any(one.call == _GATHER for one in ranks) else ""
    if len({one.group for one in ranks if one.group is not None}) > 1:
        return (
            f"{message}; they belong to different process groups, and each group counts its own collectives",
            ("Check what each rank did then: 'py-spy dump' of a hanging run shows the line"),
        )
    numbers = {one.number for one in ranks}
    absent = set(range(world_size or 0)) - {one.rank for one in ranks}
    if len({number for number, call, _ in calls if call}) < sum(call is not None for _, call, _ in calls):
        return f"{message}; they made different calls", (
            "A line runs on some ranks only (if rank == 0, an unused expert, a save): look for it at "
            f"that call; 'zerokit rehearse' names both lines{gathers}"
        )
    if len(numbers) > 1:
        behind = format_ranks([one.rank for one in ranks if one.number == min(numbers)])
        return f"{message}; {behind} fell behind", (
            f"Check what {behind} did then: one batch less, a longer one, a save, a slow disk; 'py-spy dump' "
            f"of a hanging run shows the line{gathers}"
        )
    if absent:
        return f"{message}; {format_ranks(sorted(absent))} did not reach it", (
            f"See what {format_ranks(sorted(absent))} printed first; if nothing, 'dmesg -T' of its machine"
            f"{gathers}"
        )
    link = "Find the link with NCCL_DEBUG=WARN; select it with NCCL_SOCKET_IFNAME or NCCL_IB_HCA"
    if ranks[0].number == 1:
        link += ". It has carried no data yet: NCCL_P2P_DISABLE=1 shows whether GPUs cannot reach each other"
    slow = "If a rank is only slow (tokenizing, saving), raise ddp_timeout"
    if world_size is None or any(one.call is None for one in ranks):
        return f"{message}; the log does not say whether other ranks are missing", (
            f"Pass the logs of all ranks{gathers}. {slow}. If all reached it, the link is broken or slow. "
            f"{link}"
        )
    return message, f"All reached the same call, so the link is broken or slow. {link}. {slow}"


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
