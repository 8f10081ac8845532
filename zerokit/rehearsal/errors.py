"""Errors of the rehearsal that are zerokit's own limits rather than mistakes in the user's script."""

from __future__ import annotations

import sys
from types import FrameType

from zerokit import patches
from zerokit.errors import ZerokitError
from zerokit.rehearsal.call_sites import LIBRARY_FOLDERS, OWN, inside_package

_OWN = (OWN, patches.__file__, "<")
_LOADERS = ("/deepspeed/ops/op_builder/", "/triton/runtime/")
"""Folders of code that only passes a request on; its callers say more."""

_met: list[RehearsalGap] = []


class RehearsalGap(ZerokitError):  # noqa: N818 - a gap of the rehearsal, not a mistake of the user's
    """Something that runs on a GPU and that the rehearsal cannot stand in for.

    Every gap is also kept in :func:`met_gaps`, because libraries often try a kernel and fall back to another
    path when it raises: the report must say so even when the script goes on.

    Args:
        operation: the kernel or operation, as its library names it.
        hint: what can be done, as an instruction.
        where: ``file:line`` of the call; found on the stack if not given.
    """

    def __init__(self, operation: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(
            f"the rehearsal cannot stand in for {operation}",
            where=where or calling_line(),
            hint=hint or "Choose a setting that does not use it, or measure this run on a GPU",
        )
        self.operation = operation
        _met.append(self)


def met_gaps() -> tuple[RehearsalGap, ...]:
    """Every gap raised so far in this process, whether or not somebody caught it."""
    return tuple(_met)


def is_own_code(path: str) -> bool:
    """Whether a file is the rehearsal's own, or none at all."""
    return path.startswith(_OWN)


def is_in_library(path: str) -> bool:
    """Whether a file is of an installed package, and not the user's."""
    return any(folder in path for folder in LIBRARY_FOLDERS)


def calling_line() -> str:
    """``file:line`` of the innermost call outside this package, and of the script that led to it.

    A line in an installed library says what was asked for; the line of the user's script says where to change
    it.
    """
    innermost, script = _innermost_and_script()
    if innermost is None:
        return "an unknown line"
    return innermost if script in (None, innermost) else f"{innermost} (called from {script})"


def script_line() -> str:
    """``file:line`` of the user's script, where a library's line would say nothing."""
    innermost, script = _innermost_and_script()
    return script or innermost or "an unknown line"


def _innermost_and_script() -> tuple[str | None, str | None]:
    """The innermost line of the stack outside this package, and the innermost of the user's own."""
    frame: FrameType | None = sys._getframe(1)
    innermost: str | None = None
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_own_code(path) and not any(loader in path for loader in _LOADERS):
            line = f"{inside_package(path)}:{frame.f_lineno}"
            innermost = innermost or line
            if not is_in_library(path):
                return innermost, line
        frame = frame.f_back
    return innermost, None
