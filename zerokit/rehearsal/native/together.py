"""Simulates several ranks in one virtual time, by calling `native/together.cpp`. Needs no torch.

Times are nanoseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit.rehearsal.native.build import TOGETHER, built_library
from zerokit.rehearsal.native.c_functions import declare
from zerokit.rehearsal.native.clock import SIZE_OF_ACT
from zerokit.rehearsal.recording import SPAN

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]


_SUBMIT = 0
"""The kind of an act that gives a stream work (`clock.h`)."""


class RankActs(NamedTuple):
    """The recorded acts of a rank that was rehearsed alone."""

    acts: bytes
    """As `Clock.acts` returns them."""
    meetings: Sequence[int]
    """For each collective of this rank, its number among all collectives; -1 if no other rank takes part."""


def with_durations(acts: Array, durations: Sequence[int]) -> Array:
    """A copy of acts, as bytes, in which collectives take other times, in the order of the rank."""
    import numpy

    changed = acts.copy()
    rows = changed.view(
        {
            "names": ["duration", "meeting", "kind"],
            "formats": ["<i8", "<i4", "u1"],
            "offsets": [16, 36, 44],
            "itemsize": SIZE_OF_ACT,
        }
    )
    # A wait has no duration, but a time of the host.
    collectives = (rows["kind"] == _SUBMIT) & (rows["meeting"] >= 0)
    rows["duration"][collectives] = numpy.array(durations, numpy.int64)[rows["meeting"][collectives]]
    return changed


class Played(NamedTuple):
    """The timeline of one rank among the others."""

    spans: Array
    """Like those of `Backend.spans`."""
    events: Array
    """When each event happened; -1 for an event that never did."""
    hosts: Array
    """The end of each wait of the rank's CPU: its time when the rank was alone, and its time now. Shape
    (waits, 2)."""
    given_up: int
    """Collectives that began without all of their ranks, because otherwise no rank could go on."""

    def time_of_host(self, times: Array) -> Array:
        """Convert times of the CPU from the rank alone to the ranks together."""
        import numpy

        alone, together = numpy.concatenate([[[0, 0]], self.hosts]).T
        last = numpy.searchsorted(alone, times, side="right") - 1
        result: Array = times + (together - alone)[last]
        return result


def play(ranks: Sequence[RankActs], sizes: Sequence[int], beside_collective: float) -> list[Played]:
    """Simulate ranks that wait for each other; returns the timeline of each.

    Args:
        beside_collective: factor by which kernels take longer while a collective runs on another stream.
    """
    import numpy

    library = ctypes.CDLL(str(built_library().with_name(TOGETHER)))
    declare(library, "zk_together_")
    size_of = (ctypes.c_int32 * len(sizes))(*sizes)
    together = library.zk_together_new(round(1000 * beside_collective), size_of, len(sizes))
    try:
        for acts, meetings in ranks:
            names = (ctypes.c_int32 * len(meetings))(*meetings)
            library.zk_together_add(together, acts, len(acts) // SIZE_OF_ACT, names)
        library.zk_together_play(together)

        def copied(what: str, rank: int, of: Any) -> Array:
            count: Callable[..., int] = getattr(library, f"zk_together_{what}_count")
            rows: Array = numpy.zeros(count(together, rank), of)
            getattr(library, f"zk_together_copy_{what}s")(together, rank, rows.ctypes.data)
            return rows

        return [
            Played(
                copied("span", rank, SPAN),
                copied("event", rank, numpy.int64),
                copied("host", rank, numpy.int64).reshape(-1, 2),
                int(library.zk_together_given_up(together)),
            )
            for rank in range(len(ranks))
        ]
    finally:
        library.zk_together_delete(together)
