"""The collectives that a rank takes part in, numbered so that the same one is found on other ranks."""

from __future__ import annotations

from collections import Counter

Meeting = tuple[str, ...]
"""``("group", name)`` or ``("pair", source, target, tag)``; recorded with the number of the call."""


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
