"""One thing that is wrong with a ds_config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zerokit.documents import KeyPath

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and how to mend it."""

    path: KeyPath
    """Where, from the top of the config; ``()`` is the whole of it."""
    message: str
    """What is wrong, without a full stop."""
    hint: str | None = None
    """How to mend it, as an instruction."""
    line: int | None = None
    """From 1; None if the config did not come from a file."""
    severity: Severity = "error"
    rule: str = "bad-value"
    """A short stable name of this kind of problem."""
