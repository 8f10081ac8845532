"""What one look at a machine finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "error", "not checked"]


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at."""

    name: str
    status: Status
    message: str
    """What was found, without a full stop."""
    fix: str | None = None
    """What to do, where something is wrong."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment, with which a run goes around it on all machines; launch-script sets them."""


def ok(name: str, message: str) -> CheckResult:
    """It is as it must be."""
    return CheckResult(name, "ok", message)


def not_checked(name: str, message: str) -> CheckResult:
    """It cannot be looked at here, and why."""
    return CheckResult(name, "not checked", message)
