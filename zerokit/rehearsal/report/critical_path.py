"""What a step consists of if one goes back from its end, each time to what had to be over before."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from zerokit.rehearsal.native.clock import HOST, WorkKind
from zerokit.rehearsal.recording import Array

HOST_WORK = "the host, launching"
"""With the Python between its launches."""


class Link(NamedTuple):
    """A kind of work on the path."""

    name: str
    nanoseconds: int
    times: int


class _Spans:
    """Of the streams, or of the host, in the order of their ends."""

    def __init__(self, spans: Array) -> None:
        ordered = spans[np.argsort(spans["end"], kind="stable")]
        self.begins, self.ends = ordered["begin"].tolist(), ordered["end"].tolist()
        self.kinds, self.names = ordered["kind"].tolist(), ordered["name"].tolist()
        self._place = len(self.ends)

    def last_until(self, time: int) -> int | None:
        """The place of the last that has ended by then; it is asked for earlier and earlier times."""
        while self._place and self.ends[self._place - 1] > time:
            self._place -= 1
        return self._place - 1 if self._place else None

    def that_ended_at(self, time: int) -> int | None:
        """The place of one that ended then; likewise."""
        place = self.last_until(time)
        return None if place is None or self.ends[place] < time else place


def critical_path(spans: Array, names: tuple[str, ...], begin: int, end: int) -> list[Link]:
    """The kinds of work on the path, those that take most first; together they take from `begin` to `end`.

    Work of a stream that begins as other work ends waited for it; what begins as none does waited for the
    host, which had gone on by itself since it last waited: back to there the path is the host's, whatever
    the streams did meanwhile.

    Args:
        spans: of streams and of the host (recording.SPAN).
        names: that they name.
        begin: of the step, ns.
        end: of the step, ns.
    """
    lasting = spans[(spans["end"] > spans["begin"]) & (spans["end"] > begin) & (spans["begin"] < end)]
    of_host = lasting["stream"] == HOST
    device, host = _Spans(lasting[~of_host]), _Spans(lasting[of_host])
    taken: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    at, is_on_host = end, False
    while at > begin:
        awaited, own = device.that_ended_at(at), host.that_ended_at(at)
        has_waited = own is not None and host.kinds[own] == WorkKind.WAITING
        if awaited is not None and (has_waited or not is_on_host):
            what, start = _words(device.kinds[awaited], names[device.names[awaited]]), device.begins[awaited]
            is_on_host = False
        elif own is not None and not has_waited:
            what, start = names[host.names[own]].partition(".")[0], host.begins[own]
            is_on_host = True
        else:
            last = host.last_until(at - 1)
            what, start = HOST_WORK, begin if last is None else host.ends[last]
            is_on_host = True
        start = max(start, begin)
        taken[what] += at - start
        counts[what] += 1
        at = start
    return [Link(what, whole, counts[what]) for what, whole in taken.most_common()]


def _words(kind: int, operator: str) -> str:
    base = operator.partition(".")[0]
    return f"other ranks, for {base}" if kind == WorkKind.MEETING else base
