"""What one look at a machine finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "error", "could not look"]


@dataclass(frozen=True)
class Look:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    says: str
    """What was found, without a full stop."""
    mend: str | None = None
    """What to do, where something is wrong."""


def ok(what: str, says: str) -> Look:
    """It is as it must be."""
    return Look(what, "ok", says)


def unseen(what: str, says: str) -> Look:
    """It cannot be looked at here, and why."""
    return Look(what, "could not look", says)
