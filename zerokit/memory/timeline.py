"""Memory over time by kind, with the largest moment of each phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import add
from typing import TypeVar

from zerokit.memory.term import TermKind
from zerokit.reporting.phases import Phase

T = TypeVar("T")
Held = dict[TermKind, dict[int, int]]
"""Number by unit in bytes, for each kind."""


class Change:
    """Amounts that are held and freed one after the other, summed up.

    Args:
        amounts: kind, unit and count of each; a negative count is freed.
    """

    def __init__(self, amounts: Sequence[tuple[TermKind, int, int]]) -> None:
        sums: dict[tuple[TermKind, int], int] = {}
        self.rise, self.bytes = 0, 0
        """The largest sum on the way, and the last one."""
        at_rise: dict[tuple[TermKind, int], int] = {}
        for kind, unit, count in amounts:
            sums[kind, unit] = sums.get((kind, unit), 0) + count
            self.bytes += unit * count
            if self.bytes > self.rise:
                self.rise, at_rise = self.bytes, sums.copy()
        self.frees = any(count < 0 for _, _, count in amounts)
        self.to_rise = tuple(at_rise.items())
        rest = ((key, count - at_rise.get(key, 0)) for key, count in sums.items())
        self.from_rise = tuple((key, count) for key, count in rest if count)
        self.sums = tuple((key, count) for key, count in sums.items() if count)


class Changes:
    """Changes in a row; None: nothing changes."""

    def __init__(self, changes: Sequence[Change | None]) -> None:
        self.each = changes
        self.bytes = [0 if one is None else one.bytes for one in changes]
        self.rises = [0 if one is None else one.rise for one in changes]
        self.sums: defaultdict[tuple[TermKind, int], int] = defaultdict(int)
        for one in changes:
            for key, count in () if one is None else one.sums:
                self.sums[key] += count


class Timeline:
    """The memory of one device, or of devices that fill up together."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[TermKind, int], int] = defaultdict(int)
        self.total = 0
        self.phase: Phase = "init"
        self._most: dict[Phase, int] = {}
        self._fullest: dict[Phase, Callable[[], dict[tuple[TermKind, int], int]]] = {}
        self._growing = False
        """The largest moment of this phase is now, and is not recorded yet."""

    def hold(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            self._counts[kind, unit] += count
            self.total += unit * count
            if self.total > self._most.get(self.phase, -1):
                self._most[self.phase] = self.total
                self._growing = True

    def free(self, kind: TermKind, unit: int, count: int) -> None:
        if unit and count:
            if self._growing:
                self._record()
            self._counts[kind, unit] -= count
            self.total -= unit * count

    def free_all(self, kind: TermKind) -> None:
        for unit, count in self._units_of(kind):
            self.free(kind, unit, count)

    def spike(self, kind: TermKind, unit: int, count: int) -> None:
        """Allocate and free at once."""
        if self.total + unit * count > self._most.get(self.phase, -1):
            self.hold(kind, unit, count)
            self.free(kind, unit, count)

    def change(self, change: Change) -> None:
        """Hold and free what `change` sums up."""
        counts = self._counts
        if self.total + change.rise > self._most.get(self.phase, -1):
            self._most[self.phase] = self.total + change.rise
            for key, count in change.to_rise:
                counts[key] += count
            self._record()
            for key, count in change.from_rise:
                counts[key] += count
        else:
            if self._growing and change.frees:
                self._record()
            for key, count in change.sums:
                counts[key] += count
        self.total += change.bytes

    def change_in_turn(self, first: Changes, second: Changes, phases: Mapping[int, Phase]) -> None:
        """A change of `first`, then one of `second`, and so on.

        `phases`: those that are entered before a change of `second`, by its number.
        """
        if self._growing:
            self._record()
        before = self._counts.copy()
        totals = list(accumulate(_in_turn(first.bytes, second.bytes), initial=self.total))
        tops = list(map(add, totals, _in_turn(first.rises, second.rises)))
        begins = [0, *(2 * number + 1 for number in phases)]
        for phase, begin, end in zip((self.phase, *phases.values()), begins, [*begins[1:], len(tops)], strict=True):
            self.phase, most = phase, max(tops[begin:end])
            if most > self._most.get(phase, -1):
                self._most[phase] = most
                place = tops.index(most, begin, end)
                self._fullest[phase] = partial(_counts_at, before, _in_turn(first.each, second.each), place)
        self.total = totals[-1]
        for one in (first, second):
            for key, count in one.sums.items():
                self._counts[key] += count

    def enter(self, phase: Phase) -> None:
        if self._growing:
            self._record()
        self.phase = phase
        if self.total > self._most.get(phase, -1):
            self._most[phase] = self.total
            self._growing = True

    def bytes_of(self, kind: TermKind) -> int:
        """Bytes of `kind` that are held now."""
        return sum(unit * count for unit, count in self._units_of(kind))

    @property
    def held(self) -> Held:
        """What is held now."""
        return _by_kind(self._counts)

    @property
    def fullest(self) -> dict[Phase, Held]:
        """What each phase held at its largest moment."""
        if self._growing:
            self._record()
        return {phase: _by_kind(counts()) for phase, counts in self._fullest.items()}

    @property
    def fullest_of_all(self) -> Held:
        """What was held at the largest moment of all phases."""
        return self.fullest[max(self._most, key=self._most.__getitem__)]

    @property
    def peak_bytes(self) -> int:
        return max(self._most.values(), default=0)

    def _units_of(self, kind: TermKind) -> list[tuple[int, int]]:
        return [(unit, count) for (own, unit), count in self._counts.items() if own is kind and count]

    def _record(self) -> None:
        """Record before anything is freed: while memory grows, the largest moment is still to come."""
        self._growing = False
        counts = self._counts.copy()
        self._fullest[self.phase] = lambda: counts


def _in_turn(first: Sequence[T], second: Sequence[T]) -> list[T]:
    both = [*first, *second]
    both[::2], both[1::2] = first, second
    return both


def _counts_at(
    before: dict[tuple[TermKind, int], int], changes: Sequence[Change | None], place: int
) -> dict[tuple[TermKind, int], int]:
    """The counts at the largest sum of the change at `place`."""
    counts = before.copy()
    for change in changes[:place]:
        for key, count in () if change is None else change.sums:
            counts[key] += count
    if (last := changes[place]) is not None:
        for key, count in last.to_rise:
            counts[key] += count
    return counts


def _by_kind(counts: Mapping[tuple[TermKind, int], int]) -> Held:
    held: Held = {}
    for (kind, unit), count in counts.items():
        held.setdefault(kind, {}).update({unit: count} if count else {})
    return {kind: amounts for kind, amounts in held.items() if amounts}
