"""Errors of the rehearsal that are zerokit's own limits rather than mistakes in the user's script."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

from zerokit.errors import ZerokitError
from zerokit.rehearsal.call_sites import in_words, innermost_and_script
from zerokit.rehearsal.context import rank_context

_UNKNOWN = "an unknown line"


class RehearsalGap(ZerokitError):  # noqa: N818 - a gap of the rehearsal, not a mistake of the user's
    """Something that runs on a GPU and that the rehearsal cannot stand in for.

    Every gap is also kept in :func:`met_gaps`, so that the report shows it if a library takes another path.

    Args:
        where: ``file:line`` of the call; found on the stack if not given.
    """

    def __init__(self, operation: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(
            f"the rehearsal cannot stand in for {operation}",
            where=where or calling_line(),
            hint=hint or "Choose a setting that does not use it, or measure this run on a GPU",
        )
        self.operation = operation
        rank_context().state(_Gaps).append(self)


class _Gaps(list[RehearsalGap]):
    """Those that were raised."""


def met_gaps() -> tuple[RehearsalGap, ...]:
    """Every gap raised so far on this rank, whether or not somebody caught it."""
    return tuple(rank_context().state(_Gaps))


def calling_line() -> str:
    """``file:line`` of the innermost call outside this package, and of the script that led to it."""
    return in_words(*innermost_and_script(_stack())) or _UNKNOWN


def script_line() -> str:
    """``file:line`` of the user's script, where a library's line would not help."""
    innermost, script = innermost_and_script(_stack())
    return script or innermost or _UNKNOWN


def _stack() -> Iterator[tuple[str, int]]:
    return ((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1)))
