"""What the library says beside its figures."""

from __future__ import annotations

import enum
from typing import NamedTuple


class NoteKind(enum.IntEnum):
    """Why the library noted something."""

    MADE_UP = 0
    """A result that depends on values was chosen by a stated policy."""
    GAP = 1
    """An operator that the rehearsal cannot stand in for; a library may have caught the error."""
    OTHER_DEVICE = 2
    """Something was put on another rank's device, and is counted on this rank's own."""


class Note(NamedTuple):
    """Something that the library noted, and where."""

    kind: NoteKind
    what: str
    site: int
    """Index of the calling line, or -1."""
    times: int
