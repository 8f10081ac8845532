"""A mistake in a file, its place and its fix: for config, recipe and lint."""

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
    """Set the value at `path`. A new key goes to the end of its section, which is made if it is absent."""

    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the key at `path` with its value."""

    path: KeyPath


@dataclass(frozen=True, slots=True)
class Move:
    """Move or rename a key; within the same section it keeps its position."""

    path: KeyPath
    to: KeyPath


@dataclass(frozen=True, slots=True)
class ReplaceText:
    """Replace the text between two offsets of the file, where it is not JSON."""

    start: int
    end: int
    text: str


Edit = SetValue | Remove | Move | ReplaceText
"""One step of a fix. Later steps apply to the result of earlier ones."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake."""

    path: KeyPath
    """Its path as the file spells it; ``()`` is the whole file."""
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
    """The edits that fix it; empty if there is more than one way."""
    unfixed: str | None = None
    """Why ``--fix`` does not fix it, if that is not obvious."""
    also: tuple[KeyPath, ...] = ()
    """More places that it covers."""
