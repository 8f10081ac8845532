"""What ranks that are rehearsed beside each other do together, and when they do it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.rehearsal.native import together
from zerokit.rehearsal.native.together import Played, RankActs
from zerokit.rehearsal.ranks.endings import left_by_all
from zerokit.rehearsal.ranks.roles import Roles
from zerokit.rehearsal.recording import SPAN

if TYPE_CHECKING:
    from zerokit.rehearsal.native.clock import Clock
    from zerokit.rehearsal.ranks.exchange import Exchange

Meeting = tuple[str, ...]
"""``("group", name)`` or ``("pair", source, target, tag)``; told with the number of the call."""
_ACTS, _MEETINGS = "acts", "meetings"
"""What a rank says at its end: what its host did, and the meetings that this names."""


class Meetings:
    """Those of this rank, numbered as it comes to them."""

    def __init__(self) -> None:
        self._calls: Counter[Meeting] = Counter()
        self.all: list[Meeting] = []
        """In the order in which it came to them."""

    def come(self, meeting: Meeting) -> int:
        """The number of this one."""
        self.all.append((*meeting, str(self._calls[meeting])))
        self._calls[meeting] += 1
        return len(self.all) - 1

    def tell(self, exchange: Exchange, acts: bytes) -> None:
        """Tell the other ranks, at the end of this one."""
        exchange.say(_MEETINGS, payload=json.dumps(self.all).encode())
        exchange.say(_ACTS, payload=acts)


def play_together(clock: Clock, folder: Path, rank: int, num_gpus: int) -> Played | None:
    """Wait for the ends of all ranks that are rehearsed, and have them wait for each other.

    Args:
        clock: of this rank, which has told what it did.
        folder: of the exchange.
        rank: this one.
        num_gpus: world size.

    Returns:
        what became of this rank; None if there is no other.
    """
    told, roles = left_by_all(folder, num_gpus, _MEETINGS, _ACTS)
    if rank not in told or len(told) < 2:
        return None
    meetings = [[tuple(one) for one in json.loads(named)] for named, _ in told.values()]
    numbers, sizes = matched(meetings, roles)
    ranks = [RankActs(acts, own) for (_, acts), own in zip(told.values(), numbers, strict=True)]
    return together.play(clock, ranks, sizes, list(told).index(rank), SPAN)


def matched(meetings: Sequence[Sequence[Meeting]], roles: Roles) -> tuple[list[list[int]], list[int]]:
    """Which meetings of several ranks are the same.

    Args:
        meetings: of each rank.
        roles: who stands for ranks that are not rehearsed, when these send to each other.

    Returns:
        The number of each meeting of each rank, -1 for one that no other comes to; and how many ranks come to
        each.
    """
    places: dict[Meeting, int] = {}
    numbers = [
        [places.setdefault(_among_rehearsed(one, roles), len(places)) for one in of_rank]
        for of_rank in meetings
    ]
    sizes = Counter(place for of_rank in numbers for place in of_rank)
    comers = Counter(place for of_rank in numbers for place in set(of_rank))
    # A rank that stands for both ends of a pair comes twice, and meets nobody.
    met = [[place if comers[place] > 1 else -1 for place in of_rank] for of_rank in numbers]
    return met, [sizes[place] for place in range(len(places))]


def _among_rehearsed(meeting: Meeting, roles: Roles) -> Meeting:
    if meeting[0] != "pair":
        return meeting
    kind, source, target, *rest = meeting
    return (kind, *(str(roles.stands_for(int(rank))) for rank in (source, target)), *rest)
