"""Simulates ranks that wait for each other: moves their recordings into one virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zerokit.rehearsal.native.together import Played, RankActs, play, with_durations
from zerokit.rehearsal.ranks.roles import Roles
from zerokit.rehearsal.recording import RankTimes, Recording
from zerokit.rehearsal.timing.rank_time import Meeting

_NOTICEABLY_LONGER = 1.02
"""How much longer a step takes together with other ranks before a warning mentions the script's clocks."""


def play_together(recordings: Mapping[int, Recording], roles: Roles, beside_collective: float) -> dict[int, Recording]:
    """Return the recordings of all ranks, by rank, in the time that they have when they wait for each other.

    `beside_collective`: the factor by which kernels take longer while a collective runs on another stream.
    """
    played = _played(recordings, roles, beside_collective)
    return {**recordings, **{rank: _beside_others(recordings[rank], own) for rank, own in played.items()}}


def step_seconds_by_network(
    recordings: Mapping[int, Recording], roles: Roles, beside_collective: float, rank: int, step: int
) -> dict[int, float]:
    """Seconds of a step, counted from 1, by Gbit/s of each network that the recordings have costs for."""
    times = recordings[rank].facts.times
    if times is None:
        return {}
    found = {}
    for speed in times.meetings_by_network:
        own = _played(recordings, roles, beside_collective, network=speed).get(rank)
        if own is not None:
            ends = [0, *_step_ends(times, own)]
            found[speed] = (ends[step] - ends[step - 1]) / 1e9
    return found


def _played(
    recordings: Mapping[int, Recording], roles: Roles, beside_collective: float, network: int | None = None
) -> dict[int, Played]:
    """All ranks that were timed, together; none if they are fewer than two."""
    timed = {
        rank: (one.acts, one.facts.times)
        for rank, one in recordings.items()
        if one.facts.times is not None and len(one.acts)
    }
    if len(timed) < 2:
        return {}
    numbers, sizes = matched([times.meetings for _, times in timed.values()], roles)
    acts = []
    for (own, times), its_numbers in zip(timed.values(), numbers, strict=True):
        if network is not None:
            own = with_durations(own, times.meetings_by_network[network])
        acts.append(RankActs(own.tobytes(), its_numbers))
    return dict(zip(timed, play(acts, sizes, beside_collective), strict=True))


def _step_ends(times: RankTimes, played: Played) -> list[int]:
    return [int(played.events[events].max()) for events in times.step_end_events]


def _beside_others(recording: Recording, played: Played) -> Recording:
    times = recording.facts.times
    assert times is not None
    ends = _step_ends(times, played)
    events = recording.events.copy()
    events["time_ns"] = played.time_of_host(events["time_ns"])
    warnings = []
    if ends and ends[-1] > _NOTICEABLY_LONGER * times.step_ends[-1]:
        warnings.append(
            "ranks wait for each other, which the clocks that the script sees do not know: the speed that it "
            "prints is that of each rank by itself"
        )
    if played.given_up:
        warnings.append(
            f"{played.given_up} collectives began in virtual time before all of their ranks had come to "
            "them, as ranks would have waited for each other: the step's time may be too short"
        )
    return replace(
        recording,
        events=events,
        spans=played.spans,
        warnings=(*recording.warnings, *warnings),
        facts=recording.facts.model_copy(update={"times": times.model_copy(update={"step_ends": ends})}),
    )


def matched(meetings: Sequence[Sequence[Meeting]], roles: Roles) -> tuple[list[list[int]], list[int]]:
    """Match the meetings of several ranks.

    Returns:
        The number of each meeting of each rank, -1 if no other rank takes part; and how many ranks take part.
    """
    places: dict[Meeting, int] = {}
    numbers = [
        [places.setdefault(_among_rehearsed(one, roles), len(places)) for one in of_rank] for of_rank in meetings
    ]
    sizes = Counter(place for of_rank in numbers for place in of_rank)
    comers = Counter(place for of_rank in numbers for place in set(of_rank))
    # A rank that stands for both ends of a pair comes twice, and meets no other rank.
    met = [[place if comers[place] > 1 else -1 for place in of_rank] for of_rank in numbers]
    return met, [sizes[place] for place in range(len(places))]


def _among_rehearsed(meeting: Meeting, roles: Roles) -> Meeting:
    if meeting[0] != "pair":
        return meeting
    kind, source, target, *rest = meeting
    return (kind, *(str(roles.stands_for(int(rank))) for rank in (source, target)), *rest)
