"""Collectives that timed out: which ranks waited, in which call, and who did not come."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from zerokit import documents
from zerokit.errors import DocumentError
from zerokit.units import format_bytes, format_seconds

# torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, WorkNCCL::timeoutMsg and its printing.
_TIMEOUT = re.compile(
    r"Rank (?P<rank>\d{1,7})\][^\n]{0,40}Watchdog caught collective operation timeout: WorkNCCL\("
    r"SeqNum=(?P<number>\d{1,12}), OpType=(?P<call>\w{1,40})"
    r"(?:, NumelIn=(?P<elements>\d{1,18}))?[^)]{0,120}Timeout\(ms\)=(?P<limit>\d{1,12})"
)
_DUMP = re.compile(r"(?:[Ff]light [Rr]ecorder|debug info|NCCL trace)[^\n]{0,60}? to (?P<path>/[^\s:]{1,300})")
_MOST_BYTES = 4 << 20
"""Of a dump: a log with several is to be explained within seconds."""
MOST_RANKS = 8
"""That are listed."""


class Waiting(NamedTuple):
    """A rank that waited in vain."""

    rank: int
    number: int
    """Of the collective in its group, from 1: all ranks count alike."""
    call: str
    elements: str | None
    limit_seconds: float


def waiting(text: str) -> list[Waiting]:
    """The first collective in which each rank of a log waited in vain, by rank."""
    found: dict[int, Waiting] = {}
    for match in _TIMEOUT.finditer(text):
        rank = int(match["rank"])
        seconds = int(match["limit"]) / 1000
        one = Waiting(rank, int(match["number"]), match["call"], match["elements"], seconds)
        found.setdefault(rank, one)
    return [found[rank] for rank in sorted(found)]


def explain(ranks: list[Waiting], world_size: int | None) -> tuple[str, str]:
    """What the ranks that waited say of the one for which they did, and what to do.

    Args:
        ranks: from :func:`waiting`.
        world_size: if the log tells it.
    """
    if not ranks:
        return "a collective of NCCL timed out", "Run again with TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
    calls: dict[tuple[int, str, str | None], list[int]] = defaultdict(list)
    for one in ranks:
        calls[one.number, one.call, one.elements].append(one.rank)
    told = []
    for (number, call, elements), those in sorted(calls.items(), key=lambda item: item[0][0])[:MOST_RANKS]:
        size = f" of {int(elements):,} elements" if elements else ""
        told.append(f"{listed(those)} in collective {number} ({call}{size})")
    says = f"ranks waited {format_seconds(ranks[0].limit_seconds)} in vain: {'; '.join(told)}"
    numbers = [number for number, _, _ in calls]
    absent = set(range(world_size or 0)) - {one.rank for one in ranks}
    if len(set(numbers)) < len(numbers):
        return f"{says}; they came to different calls", (
            "Some line runs on some ranks alone (if rank == 0, an expert unused, one that saves): look for "
            "it at that call; 'zerokit rehearse' names the lines of both"
        )
    if len(numbers) > 1:
        behind = listed(calls[min(calls, key=lambda key: key[0])])
        return f"{says}; {behind} came least far", (
            f"Look at what {behind} did then: a batch less, a longer one, a save, a slow disk; 'py-spy dump' "
            "of a run that hangs shows the line"
        )
    if absent:
        return f"{says}; {listed(sorted(absent))} did not come", (
            f"Look at what {listed(sorted(absent))} said first; if nothing, at 'dmesg -T' of its machine"
        )
    return says, (
        "All came to the same call, so the link is broken or slow: NCCL_DEBUG=WARN names it, "
        "NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose it. If a rank only takes long (tokenizing, saving), raise "
        "ddp_timeout"
    )


def listed(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = [f"{len(words) - MOST_RANKS} more"] if len(words) > MOST_RANKS else []
    return f"rank{'s' * (len(ranks) > 1)} {', '.join([*words[:MOST_RANKS], *more])}"


def dumps(text: str) -> list[str]:
    """What the log says of the flight recorder's dumps: a line for those that can be read, or for all."""
    paths = list(dict.fromkeys(match["path"].rstrip(".,") for match in _DUMP.finditer(text)))
    told = {path: _read_dump(path) for path in paths[:MOST_RANKS]}
    read = [f"{path}: {_first_open(entries)}" for path, entries in told.items() if isinstance(entries, list)]
    others = [
        f"the flight recorder's dumps, such as {path}, {why}: torchfrtrace reads them"
        for path, why in told.items()
        if isinstance(why, str)
    ]
    return read or others[:1]


def _read_dump(path: str) -> list[Any] | str:
    """The calls of a dump of plain JSON, or why they cannot be read."""
    if not documents.is_file(Path(path)):
        return "are not on this machine"
    try:
        content = documents.read_bytes(Path(path), max_bytes=_MOST_BYTES)
        if content.startswith(b"\x80"):
            return "are pickles"
        if len(content) > _MOST_BYTES:
            return f"are larger than {format_bytes(_MOST_BYTES)}"
        data = documents.parse_document(content, path, max_bytes=_MOST_BYTES).data
    except DocumentError:
        return "are no JSON"
    entries = data.get("entries") if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else "have no entries"


def _first_open(entries: list[Any]) -> str:
    open_ = [entry for entry in entries if isinstance(entry, dict) and entry.get("state") != "completed"]
    if not open_:
        return f"all {len(entries)} collectives were done"
    first = open_[0]
    number = first.get("collective_seq_id", first.get("seq_id"))
    frames = first.get("frames")
    frame = frames[0] if isinstance(frames, list) and frames and isinstance(frames[0], dict) else {}
    at = f" at {frame.get('filename')}:{frame.get('line')}" if "filename" in frame else ""
    return f"collective {number} ({first.get('profiling_name')}) was {first.get('state')}{at}"
