"""The result of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "error", "not checked"]


@dataclass(frozen=True)
class CheckResult:
    name: str
    status: Status
    message: str
    """One sentence without a full stop."""
    fix: str | None = None
    """What to do if something is wrong."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that avoid the problem on all machines; launch-script sets them."""


def ok(name: str, message: str) -> CheckResult:
    """The check passed."""
    return CheckResult(name, "ok", message)


def not_checked(name: str, message: str) -> CheckResult:
    """The check could not run, and why."""
    return CheckResult(name, "not checked", message)
