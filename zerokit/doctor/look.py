"""What one look at a machine finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, with which a run goes around it on all machines; launch-script sets them."""


def ok(what: str, says: str) -> Look:
    """It is as it must be."""
    return Look(what, "ok", says)


def unseen(what: str, says: str) -> Look:
    """It cannot be looked at here, and why."""
    return Look(what, "could not look", says)
