"""Explains the lines of a log."""

from __future__ import annotations

from zerokit.exits.explain import Explanation, explain_log
from zerokit.exits.log import Log


def explain(*lines: str) -> Explanation:
    """The explanation of a log that has these lines below a first one."""
    return explain_log(Log("a.log", "\n".join(["starting", *lines]) + "\n"))
