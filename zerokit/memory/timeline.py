"""Memory over time by kind, with the largest moment of each phase."""

from __future__ import annotations

from collections import defaultdict

from zerokit.memory.term import TermKind
from zerokit.reporting.phases import Phase

Held = dict[TermKind, dict[int, int]]
"""Number by unit in bytes, for each kind."""


class Timeline:
    """The memory of one device, or of devices that fill up together."""

    def __init__(self) -> None:
        self._counts: defaultdict[TermKind, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.total = 0
        self.phase: Phase = "init"
        self._most: dict[Phase, int] = {}
        self._fullest: dict[Phase, Held] = {}
        self._growing = False
        """The largest moment of this phase is now, and is not recorded yet."""

    def hold(self, kind: TermKind, unit: int, count: int) -> None:
        """Allocate `count` units."""
        if unit and count:
            self._counts[kind][unit] += count
            self.total += unit * count
            self._look()

    def free(self, kind: TermKind, unit: int, count: int) -> None:
        """Free `count` units."""
        if unit and count:
            self._record()
            self._counts[kind][unit] -= count
            self.total -= unit * count

    def free_all(self, kind: TermKind) -> None:
        """Free everything of `kind`."""
        held = self.bytes_of(kind)
        if held:
            self._record()
            self._counts[kind].clear()
            self.total -= held

    def spike(self, kind: TermKind, unit: int, count: int) -> None:
        """Allocate and free at once."""
        if self.total + unit * count > self._most.get(self.phase, -1):
            self.hold(kind, unit, count)
            self.free(kind, unit, count)

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self._record()
        self.phase = phase
        self._look()

    def bytes_of(self, kind: TermKind) -> int:
        """Bytes of `kind` that are held now."""
        return sum(unit * count for unit, count in self._counts[kind].items())

    @property
    def held(self) -> Held:
        """What is held now."""
        found = {kind: {u: n for u, n in counts.items() if n} for kind, counts in self._counts.items()}
        return {kind: counts for kind, counts in found.items() if counts}

    @property
    def fullest(self) -> dict[Phase, Held]:
        """What each phase held at its largest moment."""
        self._record()
        return self._fullest

    @property
    def fullest_of_all(self) -> Held:
        """What was held at the largest moment of all phases."""
        return self.fullest[max(self._most, key=self._most.__getitem__)]

    @property
    def peak_bytes(self) -> int:
        """The maximum."""
        return max(self._most.values(), default=0)

    def _look(self) -> None:
        if self.total > self._most.get(self.phase, -1):
            self._most[self.phase] = self.total
            self._growing = True

    def _record(self) -> None:
        """Record before anything is freed: while memory grows, the largest moment is still to come."""
        if self._growing:
            self._growing = False
            self._fullest[self.phase] = self.held
