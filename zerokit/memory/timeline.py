"""A count of bytes by name as a training step goes, which remembers the fullest moment of each phase."""

from __future__ import annotations

from collections import defaultdict

from zerokit.reporting.phases import Phase


class Timeline:
    """Bytes on one device. Names are those of terms."""

    def __init__(self) -> None:
        self.held: dict[str, int] = defaultdict(int)
        self.total = 0
        self.phase: Phase = "init"
        self._most: dict[Phase, int] = {}
        self._fullest: dict[Phase, dict[str, int]] = {}

    def hold(self, name: str, number: int) -> None:
        """Allocate; a negative `number` frees."""
        self.held[name] += number
        self.total += number
        if number > 0:
            self._look()

    def free(self, name: str, number: int) -> None:
        """Give back `number` bytes."""
        self.held[name] -= number
        self.total -= number

    def free_all(self, name: str) -> None:
        """Give back all that is held under `name`."""
        self.free(name, self.held[name])

    def spike(self, name: str, number: int) -> None:
        """Allocate and give back at once."""
        if number > 0 and self.total + number > self._most.get(self.phase, -1):
            self.hold(name, number)
            self.free(name, number)

    def enter(self, phase: Phase) -> None:
        """What comes now belongs to `phase`."""
        self.phase = phase
        self._look()

    def _look(self) -> None:
        if self.total > self._most.get(self.phase, -1):
            self._most[self.phase] = self.total
            self._fullest[self.phase] = {name: size for name, size in self.held.items() if size}

    @property
    def fullest(self) -> dict[Phase, dict[str, int]]:
        """Of each phase there was, what was held at its fullest moment."""
        return self._fullest
