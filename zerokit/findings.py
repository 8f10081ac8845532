"""What is wrong with a file, where, and how to fix it: one form for config, recipe and lint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from zerokit.documents import KeyPath

Severity = Literal["error", "warning", "info"]
"""error: it fails, or something else happens than the file plainly says. warning: it has no effect, or is
probably not meant. info: it could be better."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The worst first."""
DEFAULT_SEVERITY: Severity = "warning"
"""The least severity that is reported by default."""


@dataclass(frozen=True, slots=True)
class SetValue:
    """Write `value` at `path`: over the value there, or as a new last key of its section.

    A section that is absent is made.
    """

    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the key at `path` away, with its value."""

    path: KeyPath


@dataclass(frozen=True, slots=True)
class Move:
    """Give the value at `path` another place or name: in the same section it keeps its position."""

    path: KeyPath
    to: KeyPath


@dataclass(frozen=True, slots=True)
class ReplaceText:
    """Replace the text between two offsets of the file, where it is not JSON."""

    start: int
    end: int
    text: str


Edit = SetValue | Remove | Move | ReplaceText
"""One step of a fix. A later step of the same fix sees the file as the earlier ones left it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: KeyPath
    """Where, from the top of the file, as the file spells it; ``()`` is the whole of it."""
    message: str
    """What is wrong, without a full stop."""
    hint: str | None = None
    """How to fix it, as an instruction."""
    line: int | None = None
    """From 1; None if the data did not come from a file."""
    column: int | None = None
    """From 1, of the key; None if the data did not come from a file."""
    severity: Severity = "error"
    rule: str = "bad-value"
    """The stable id of the rule that found it."""
    fix: tuple[Edit, ...] = ()
    """The edits that fix it, if there is one right answer; otherwise empty."""
    unfixed: str | None = None
    """Why ``--fix`` does not fix it, where that is not obvious."""
    also: tuple[KeyPath, ...] = ()
    """More places that it covers."""
