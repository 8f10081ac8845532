"""What a step consists of if one goes back from its end, each time to what had to be over before."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from zerokit.rehearsal.native.clock import WorkKind
from zerokit.rehearsal.recording import Array

HOST_WORK = "the host, between launches"


class Link(NamedTuple):
    """A kind of work on the path."""

    name: str
    nanoseconds: int
    times: int


def critical_path(spans: Array, names: tuple[str, ...], begin: int, end: int) -> list[Link]:
    """The kinds of work on the path, those that take most first; together they take from `begin` to `end`.

    Work that begins as other work ends waited for it; what begins as none does waited for the host.

    Args:
        spans: of streams and of the host (recording.SPAN).
        names: that they name.
        begin, end: of the step, ns.
    """
    lasting = spans[(spans["kind"] != WorkKind.WAITING) & (spans["end"] > spans["begin"])]
    lasting = lasting[(lasting["end"] > begin) & (lasting["begin"] < end)]
    order = np.argsort(lasting["end"], kind="stable")
    starts, ends = (lasting[field][order].tolist() for field in ("begin", "end"))
    kinds, named = (lasting[field][order].tolist() for field in ("kind", "name"))
    taken: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    at, place = end, len(ends) - 1
    while at > begin:
        while place >= 0 and ends[place] > at:
            place -= 1
        if place < 0 or ends[place] < at:
            what, start = HOST_WORK, max(ends[place], begin) if place >= 0 else begin
        else:
            what, start = _words(kinds[place], names[named[place]]), max(starts[place], begin)
        taken[what] += at - start
        counts[what] += 1
        at = start
    return [Link(what, whole, counts[what]) for what, whole in taken.most_common()]


def _words(kind: int, operator: str) -> str:
    base = operator.partition(".")[0]
    return f"other ranks, for {base}" if kind == WorkKind.MEETING else base
